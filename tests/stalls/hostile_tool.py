"""A tool file that returns, raises and sends what `stall_values` names. Served by the stall tests."""

import gc
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fastmcp import Context, FastMCP
from fastmcp.tools import ToolResult
from mcp_types import ImageContent, TextContent
from stall_values import MIB, TEXTS, VALUES
from starlette.requests import Request
from starlette.responses import Response

from sandbox.inside.program import Channel
from sandbox.outcome import Denial

mcp = FastMCP("hostile")


@mcp.tool
def take(filename: str = "", filenames: list[str] | None = None, value: Any = None) -> str:
    """Take arguments."""
    return "taken"


@mcp.tool
def text(name: str) -> str:
    """Return a text."""
    return TEXTS[name]


@mcp.tool
def value(name: str) -> Any:
    """Return a value."""
    return VALUES[name]()


@mcp.tool
def blocks(kind: str) -> ToolResult:
    """Return many content blocks."""
    block = (
        TextContent(type="text", text="[1]")
        if kind == "text"
        else ImageContent(type="image", data="aGVsbG8=", mimeType="image/png")
    )
    # Each image is stored, which takes a while.
    return ToolResult(content=[block] * (10_000 if kind == "text" else 1000))


@mcp.tool
def fail(name: str, kind: str = "ValueError") -> str:
    """Raise an error."""
    raise {"ValueError": ValueError, "OSError": OSError}[kind](TEXTS[name])


@mcp.tool
async def report(name: str, context: Context) -> str:
    """Report progress and log messages."""
    await context.report_progress(1, 2, TEXTS[name])
    await context.info(TEXTS[name])
    return "reported"


@mcp.tool
def deny(end: str) -> str:
    """Send denials that never were."""
    for channel in [each for each in gc.get_objects() if isinstance(each, Channel)]:
        for number in range(200):
            path = f"{number:04d}" + "a." * 2040 + end
            channel.denied(Denial(operation="open", path=path, layer="kernel", wants="read"))
    return "sent"


@mcp.tool
def artifact(name: str) -> dict[str, Any]:
    """Return a file of a hostile name."""
    return {"results": 1, "artifacts": [{"b64": "aGVsbG8=", "name": TEXTS[name], "mime": "text/plain"}]}


@mcp.tool(
    output_schema={
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {"^(a|a)+$": {}},
        "properties": {"results": {"type": "object"}, "artifacts": {"type": "array"}},
    }
)
def patterned() -> ToolResult:
    """Return a value that takes exponential time to match with its own schema."""
    structured = {"results": {"token": 1}, "artifacts": [], "a" * 40 + "!": 1}
    return ToolResult(content="x" * 100_000, structured_content=structured)


@mcp.resource("data://{name}")
def resource(name: str) -> str:
    """Return a text as a resource."""
    return TEXTS.get(name, "nothing")


@mcp.resource("wide://{first*}/{second*}/{third}")
def segments(first: str, second: str, third: str) -> str:
    """Return what a template with several wildcards matched."""
    return third[:10]


@mcp.prompt
def prompt(name: str) -> list[str]:
    """Return many messages, or one that is long."""
    return ["x"] * 10_000 if name == "many" else [TEXTS[name]]


@mcp.custom_route("/long", methods=["GET"])
async def long(request: Request) -> Response:
    """Answer with one long header."""
    return Response(b"x", headers={"x-a": "a" * MIB})


@mcp.custom_route("/many", methods=["GET"])
async def many(request: Request) -> Response:
    """Answer with many headers."""
    response = Response(b"x")
    response.raw_headers.extend([(b"x-%d" % number, b"a") for number in range(MIB // 12)])
    return response


if __name__ == "__main__":
    mcp.run()
