"""One fault a line that only loading the file, or calling its tools, shows."""

import os
import sys
from pathlib import Path
from typing import Literal

from fastmcp import Context, FastMCP
from fastmcp.resources import TextResource

mcp = FastMCP("faults")
PAGE = "<!doctype html><script src='https://cdn.example.com/chart.js'></script>"


@mcp.tool
def undescribed(text: str) -> str:  # expect: missing-docstring
    return text


@mcp.tool
def untyped(ctx, text) -> str:  # expect: unannotated-parameter
    """Return a text."""
    return str(text)


@mcp.tool
def typed(ctx: Context, text: str) -> str:
    """Return a text."""
    return text


@mcp.tool
def counted(username: int) -> int:  # expect: username-type
    """Return a number."""
    return username


@mcp.tool
def chosen(username: Literal["alice", "bob"] | None) -> str:  # expect: username-type
    """Return a name."""
    return str(username)


@mcp.tool
def read(filename: str) -> int:  # expect: filename-without-username
    """Return the length of a file."""
    return len(Path(filename).read_bytes())


@mcp.tool
def astray(text: str, username: str) -> str:
    """Write a file beside the home."""
    Path(f"/tmp/{username}-more/note.txt").write_text(text)  # expect: write-outside-home
    return "kept"


@mcp.tool
def homeless(text: str) -> str:
    """Write a file by a path that no text shows."""
    os.close(os.open("".join(text), os.O_WRONLY | os.O_CREAT))  # expect: write-without-username
    return "kept"


@mcp.tool
def fixed() -> str:
    """Read a file of somebody's."""
    return Path("/home/alice/prices.csv").read_text()  # expect: unreadable-path


@mcp.tool
def unread(username: str) -> int:  # expect: unreturned-file
    """Write a file and do not return it."""
    Path(f"/tmp/{username}/table.csv").write_text("1")
    return 1


@mcp.tool
def returned(username: str) -> dict[str, object]:
    """Write a file and return it."""
    path = f"/tmp/{username}/chart.csv"
    Path(path).write_text("1")
    return {"results": 1, "artifacts": [{"name": "chart.csv", "path": path}]}


@mcp.tool
def careful() -> str:
    """Try a folder that may be closed, and go on without it."""
    try:
        os.close(os.open("/var/cache/example", os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        print(error, file=sys.stderr)
    return "done"


INVOKED = "x" * 65
UI = {"resourceUri": "ui://chart", "csp": {}}  # expect: widget-mime; expect: widget-remote-code


@mcp.tool(meta={"ui": UI, "openai/toolInvocation/invoked": INVOKED})
def show() -> int:  # expect: widget-visibility; expect: widget-csp-on-tool; expect: widget-invocation-text
    """Show a chart."""
    return 1


mcp.add_resource(TextResource(uri="ui://chart", text=PAGE, mime_type="text/html"))
