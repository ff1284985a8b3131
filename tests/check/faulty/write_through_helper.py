"""Writes in a helper of a helper: the line is where the write is."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


def store(path: Path, text: str) -> None:
    path.parent.joinpath("copy.txt").write_text(text)  # expect: write-without-username


def keep(text: str) -> None:
    store(Path("notes/note.txt"), text)


@mcp.tool
def note(text: str) -> str:
    """Keep a note."""
    keep(text)
    return "kept"
