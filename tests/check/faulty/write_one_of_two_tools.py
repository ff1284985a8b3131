"""Two tools share a helper that writes; one of them has no home."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


def store(text: str) -> None:
    Path("note.txt").write_bytes(text.encode())  # expect: write-without-username


@mcp.tool
def note(text: str, username: str) -> str:
    """Keep a note."""
    store(text)
    return f"kept for {username}"


@mcp.tool
def loud_note(text: str) -> str:
    """Keep a note in capitals."""
    store(text.upper())
    return "kept"
