"""Writes a file while it is imported."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


Path("started.txt").write_text("now")  # expect: write-at-import


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
