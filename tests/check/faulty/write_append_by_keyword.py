"""Appends, with the mode given by name, from a tool registered with a call."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool()
def note(text: str) -> str:
    """Keep a note."""
    with open("note.txt", mode="a", encoding="utf-8") as file:  # expect: write-without-username
        file.write(text)
    return "kept"
