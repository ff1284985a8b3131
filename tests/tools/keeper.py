"""Calls that use their home and go on for as long as a test wants, to be there when something is killed."""

import time
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("keeper")


@mcp.tool
def note(username: str, name: str, text: str) -> str:
    """Write a file into the home; return what it holds."""
    path = Path(f"/tmp/{username}") / name
    path.write_text(text)
    return path.read_text()


@mcp.tool
def listing(username: str) -> list[str]:
    """Return what is in the home."""
    return sorted(path.name for path in Path(f"/tmp/{username}").iterdir())


@mcp.tool
def reads(username: str, filename: str, wait_s: float = 0) -> str:
    """Return the content of a file, read once more after a while."""
    first = Path(filename).read_text()
    (Path(f"/tmp/{username}") / "reading").touch()
    time.sleep(wait_s)
    return first + Path(filename).read_text()


@mcp.tool
def stays(username: str) -> str:
    """Never return."""
    (Path(f"/tmp/{username}") / "precious").write_text("x")
    time.sleep(600)
    return "never"


if __name__ == "__main__":
    mcp.run()
