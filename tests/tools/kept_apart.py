"""A server that keeps one thing of each kind for its user. As a program it serves over stdio."""

import asyncio
import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from starlette.requests import Request
from starlette.responses import PlainTextResponse

mcp = FastMCP("kept_apart")
state = {"word": "nothing"}
# As a program it would need FastMCP's own engine for tasks.
TASK = None if __name__ == "__main__" else TaskConfig(poll_interval=timedelta(milliseconds=50))


@mcp.tool
def keep(word: str) -> str:
    """Keep a word in memory, for the tools, resources, prompts and routes that have no home."""
    state["word"] = word
    return word


@mcp.tool
def recall() -> str:
    """Return that word."""
    return state["word"]


@mcp.tool
def write(username: str, word: str) -> str:
    """Keep a word in the home."""
    Path("/tmp", username, "word").write_text(word)
    return word


@mcp.tool
def read(username: str) -> str:
    """Return the word of the home, and whose home it is."""
    file = Path("/tmp", username, "word")
    return f"{username}: {file.read_text() if file.exists() else 'nothing'}"


@mcp.tool
def make(username: str, name: str, content: str) -> dict[str, Any]:
    """Make a file."""
    encoded = base64.b64encode(content.encode()).decode()
    return {
        "results": f"made for {username}",
        "artifacts": [{"name": name, "b64": encoded, "mime": "text/csv"}],
    }


@mcp.tool
def look(filename: str) -> str:
    """Return what a file says, as far as there is one."""
    path = Path(filename)
    return path.read_text() if path.is_absolute() and path.exists() else "no such file here"


@mcp.tool(task=TASK)
async def later(word: str, seconds: float, ctx: Context) -> str:
    """Take a while and return a word."""
    await ctx.report_progress(1, 2, f"on the way to {word}")
    await asyncio.sleep(seconds)
    return word


@mcp.resource("memo://kept")
def memo() -> str:
    """The word of the memory."""
    return state["word"]


@mcp.resource("memo://kept/{name}")
def named_memo(name: str) -> str:
    """The word of the memory, with a name."""
    return f"{name}: {state['word']}"


@mcp.prompt
def ask_for_it() -> str:
    """The word of the memory, in a sentence."""
    return f"Say {state['word']}"


@mcp.custom_route("/kept", methods=["GET"])
async def route(_: Request) -> PlainTextResponse:
    """The word of the memory, over HTTP."""
    return PlainTextResponse(state["word"])


if __name__ == "__main__":
    mcp.run(show_banner=False)
