"""Small things that users of the command meet."""

from pathlib import Path
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def prints(text: str) -> str:
    """Print something."""
    print(text)
    return "done"


@mcp.tool
def text(megabytes: int) -> str:
    """Return a long text."""
    return "x" * (megabytes * 1024 * 1024)


@mcp.tool
def number(x: float) -> float:
    """Return a number."""
    return x


@mcp.tool
def files(username: str) -> dict[str, Any]:
    """Return files without types."""
    paths = [Path("/tmp", username, name) for name in ("a.txt", "b.txt", "c")]
    for path in paths:
        path.write_text("x")
    return {"results": 1, "artifacts": [{"name": path.name, "path": str(path)} for path in paths]}


class Odd(BaseException):
    """No exception that a server catches."""


@mcp.tool
def odd() -> str:
    """Raise it."""
    raise Odd("odd")
