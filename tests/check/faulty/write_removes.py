"""Removes a file: that is a write, too."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def forget(name: str) -> str:
    """Remove a note."""
    (Path("notes") / name).unlink(missing_ok=True)  # expect: write-without-username
    return "gone"
