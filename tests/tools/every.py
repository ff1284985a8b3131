"""A tool file that uses what authors use: served by FastMCP and by the runner, it must look the same."""

from typing import Annotated, Any, Literal

from fastmcp import Context, FastMCP
from fastmcp.dependencies import CurrentContext, CurrentFastMCP, Depends
from fastmcp.server.dependencies import get_access_token, get_http_headers
from fastmcp.tools import ToolResult
from fastmcp.utilities.types import Image
from mcp.types import Icon, ResourceLink, TextContent, ToolAnnotations
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel, Field

mcp = FastMCP("every", instructions="Use me well.", version="1.2.3", website_url="https://example.com")


class Point(BaseModel):
    x: int
    y: int = 0


@mcp.tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first one.
    """
    return a + b


@mcp.tool
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


@mcp.tool
def numbers(count: int) -> list[int]:
    """Count."""
    return list(range(count))


@mcp.tool
def facts(key: str) -> dict:
    """Return an object of any shape."""
    return {"key": key, "nested": {"a": [1, None, True]}}


@mcp.tool(
    name="shape",
    title="Shape It",
    description="Scale a point, ümläuts included.",
    tags={"geometry"},
    icons=[Icon(src="https://example.com/i.png", mime_type="image/png", sizes=["48x48"])],
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    meta={"vendor": {"k": [1, 2]}},
)
def shape(p: Point, kind: Literal["a", "b"] = "a", n: Annotated[int, Field(ge=1, le=9)] = 1) -> Point:
    return Point(x=p.x * n, y=p.y)


@mcp.tool
async def steps(count: int, ctx: Context) -> dict:
    """Report progress and messages."""
    for number in range(count):
        await ctx.report_progress(number + 1, count, f"step {number + 1}")
        await ctx.debug(f"debug {number}")
        await ctx.info(f"info {number}")
        await ctx.warning(f"warning {number}")
        await ctx.error(f"error {number}")
    return {"request_id": ctx.request_id, "client_id": ctx.client_id}


@mcp.tool
async def whoami(ctx: Context, username: str = "") -> dict[str, Any]:
    """Return the caller as the tool sees it."""
    token = get_access_token()
    return {
        "username": username,
        "subject": token.claims.get("sub") if token else None,
        "header": get_http_headers().get("x-asked-by"),
        "transport": ctx.transport,
        "session": bool(ctx.session_id),
    }


@mcp.tool
async def remember(ctx: Context, value: str | None = None) -> str:
    """Keep a value in the session, or say which one is kept."""
    if value is not None:
        await ctx.set_state("value", value)
    return str(await ctx.get_state("value"))


@mcp.tool
async def ask(ctx: Context) -> str:
    """Elicit a name from the user while running: handshake era."""
    answer = await ctx.elicit("What is your name?", response_type=str)
    return f"{answer.action}: {getattr(answer, 'data', None)}"


@mcp.tool
async def ask_again(ctx: Context) -> Any:
    """Elicit a name from the user by returning a question: modern era."""
    responses = ctx.input_responses
    if not responses:
        question = ElicitRequest(
            params=ElicitRequestFormParams(
                message="What is your name?",
                requested_schema={
                    "type": "object",
                    "properties": {"value": {"type": "string"}},
                    "required": ["value"],
                },
            )
        )
        return InputRequiredResult(input_requests={"name": question}, request_state="asked once")
    return f"{ctx.request_state}: {responses['name'].content['value']}"


def question_mark(ctx: Context = CurrentContext()) -> str:
    return f"{ctx.fastmcp.name}?"


@mcp.tool
async def injected(word: str, mark: str = Depends(question_mark), server: FastMCP = CurrentFastMCP()) -> str:
    """Use dependencies that FastMCP injects."""
    return f"{word} {mark} {server.name}"


@mcp.tool
def picture() -> Image:
    """Return an image."""
    return Image(data=b"\x89PNG\r\n\x1a\n" + b"0" * 64, format="png")


@mcp.tool
def mixed() -> list[Any]:
    """Return several content blocks."""
    return [
        TextContent(type="text", text="hi"),
        ResourceLink(type="resource_link", uri="data://config", name="config"),
    ]


@mcp.tool
def raw() -> ToolResult:
    """Return a result built by hand."""
    return ToolResult(
        content=[TextContent(type="text", text="t")], structured_content={"a": 1}, meta={"m": 1}
    )


@mcp.tool
def fails(reason: str) -> str:
    """Raise."""
    raise ValueError(reason)


@mcp.resource("data://config", name="config", mime_type="text/plain")
def config() -> str:
    """A plain resource."""
    return "configured"


@mcp.resource("data://item/{number}")
def item(number: str) -> str:
    """A templated resource."""
    return f"item {number}"


@mcp.prompt
def about(topic: str) -> str:
    """A prompt."""
    return f"Tell me about {topic}."


if __name__ == "__main__":
    mcp.run()
