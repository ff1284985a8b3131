"""First things that people try: texts, questions, output, a page with a script, a widget, denial, silence."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

from runner.widgets import Widget, add_widgets

mcp = FastMCP("first")
clock = Widget(name="clock", html="<!doctype html><title>Clock</title><p id=at>noon</p>", description="Noon")
add_widgets(mcp, [clock])


class Person(BaseModel):
    name: str


@mcp.tool
def say(text: str, loud: bool = False) -> str:
    """Return a text."""
    return text.upper() if loud else text


@mcp.tool
def wordy() -> str:
    """Return a text that is too long for a model."""
    return "word " * 4000


@mcp.tool
async def greet(ctx: Context) -> str:
    """Print, ask for a name, and greet."""
    print("before the question")
    print("also before it", file=sys.stderr)
    answer: Any = await ctx.elicit("Who are you?", Person)
    return f"Hello, **{answer.data.name}**"


@mcp.tool
async def consult(ctx: Context) -> str:
    """Request an answer of a model, and the roots."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text="Name a colour."))
    answer: Any = await ctx.session.create_message([question], max_tokens=20)
    folders: Any = await ctx.session.list_roots()
    return f"{answer.content.text} in {folders.roots[0].uri}"


@mcp.tool(meta=clock.tool_meta(invoking="Winding...", invoked="Wound"))
def wind() -> dict[str, Any]:
    """Show a widget."""
    return {"results": {"wound": True}}


@mcp.tool
def mute() -> str:
    """Wait without output."""
    time.sleep(60)
    return "never"


@mcp.tool
def page(username: str) -> dict[str, Any]:
    """Make a page whose script changes it."""
    made = Path(f"/tmp/{username}/page.html")
    made.write_text("<p id=x>still</p><script>document.getElementById('x').textContent = 'moved'</script>")
    return {"results": "made", "artifacts": [{"name": "page.html", "path": str(made), "mime": "text/html"}]}


@mcp.tool
def sly() -> str:
    """Swallow a denial."""
    with contextlib.suppress(OSError):
        Path("/var/tmp/toolcell-sly").write_text("x")
    return "fine"


@mcp.tool
def lines(filename: str) -> int:
    """Count the lines of a file."""
    return len(Path(filename).read_text().splitlines())


@mcp.tool
def sixty(rows: list[str]) -> int:
    """Take a long list."""
    return len(rows)
