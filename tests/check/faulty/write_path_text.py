"""Writes by pathlib."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def note(text: str) -> str:
    """Keep a note."""
    Path("note.txt").write_text(text)  # expect: write-without-username
    return "kept"
