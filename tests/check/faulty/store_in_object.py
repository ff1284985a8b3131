"""Keeps in an object of the module what another tool shows."""

from fastmcp import FastMCP

mcp = FastMCP("notes")


class Notes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def put(self, text: str) -> None:
        self.texts.append(text)

    def newest(self) -> str:
        return self.texts[-1]


notes = Notes()


@mcp.tool
def remember(text: str) -> str:
    """Keep a text."""
    notes.put(text)  # expect: store-in-memory
    return "kept"


@mcp.tool
def recall() -> str:
    """Return the newest text."""
    return notes.newest()
