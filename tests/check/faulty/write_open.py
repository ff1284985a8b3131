"""Writes by open, in a tool without a home."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def note(text: str) -> str:
    """Keep a note."""
    with open("note.txt", "w") as file:  # expect: write-without-username
        file.write(text)
    return "kept"
