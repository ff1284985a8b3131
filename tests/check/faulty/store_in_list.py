"""Keeps in a list of the module what another tool shows."""

from fastmcp import FastMCP

mcp = FastMCP("small")
NOTES: list[str] = []


@mcp.tool
def add_note(text: str) -> int:
    """Add a note; return how many there are."""
    NOTES.append(text)  # expect: store-in-memory
    return len(NOTES)


@mcp.tool
def notes() -> list[str]:
    """Return all notes."""
    return NOTES
