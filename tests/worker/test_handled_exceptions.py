"""An exception that the author's code handles is not the outcome of the call."""

from collections.abc import AsyncIterator

import pytest
from support import call, details, open_toolset

from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = """
from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.error_handling import RetryMiddleware
from fastmcp.tools import ToolResult

class Answers(Middleware):
    async def on_call_tool(self, context, call_next):
        try:
            return await call_next(context)
        except ToolError:
            if context.message.name != "replaced":
                raise
            return ToolResult(content="answered by middleware")

retry = RetryMiddleware(max_retries=2, base_delay=0.01, retry_exceptions=(ConnectionError, ToolError))
mcp = FastMCP("handles", middleware=[Answers(), retry])
tries = []

@mcp.tool
def down() -> str:
    raise ToolError("source is down")

@mcp.tool
def replaced() -> str:
    raise ToolError("source is down")

@mcp.tool
def second_time() -> str:
    tries.append(1)
    if len(tries) % 2:
        raise ConnectionError("reset by peer")
    return "worked"

@mcp.tool
async def catches(ctx: Context) -> str:
    try:
        await ctx.fastmcp.call_tool("down")
    except ToolError as error:
        return f"fallback ({error})"

@mcp.tool
async def asks(ctx: Context) -> str:
    async with Client(ctx.fastmcp) as client:
        return f"failed: {(await client.call_tool('down', {}, raise_on_error=False)).is_error}"

@mcp.tool
async def fails_differently(ctx: Context) -> str:
    try:
        await ctx.fastmcp.call_tool("down")
    except ToolError:
        raise KeyError("no fallback") from None

@mcp.tool
async def returns_an_error(ctx: Context) -> ToolResult:
    await catches(ctx)
    return ToolResult(content="no fallback", is_error=True)
"""


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    folder = tmp_path_factory.mktemp("handles")
    (folder / "handles.py").write_text(FILE)
    async with open_toolset(folder / "handles.py", folder) as it:
        yield it


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        ("replaced", "answered by middleware"),
        ("second_time", "worked"),
        ("catches", "fallback (source is down)"),
        ("asks", "failed: True"),
    ],
)
async def test_call_succeeds_after_handled_exception(
    tool: str, result: str, toolset: Toolset, user: str
) -> None:
    completed = await call(toolset, user, tool)

    assert completed.processed.value["results"] == result


async def test_error_of_call_is_the_outer_one(toolset: Toolset, user: str) -> None:
    raised = await call(toolset, user, "fails_differently")
    returned = await call(toolset, user, "returns_an_error")

    assert details(raised)["exception_type"] == "KeyError"
    assert "no fallback" in str(returned.processed.value)
    assert "source is down" not in str(returned.processed.value)
