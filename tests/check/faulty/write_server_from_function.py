"""The server is made by a function, and tools are registered in a loop."""

from pathlib import Path

from fastmcp import FastMCP


def make_server() -> FastMCP:
    return FastMCP("made")


def touch(name: str) -> str:
    """Make an empty file."""
    Path(name).touch()  # expect: write-without-username
    return name


def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()


mcp = make_server()
for function in (touch, shout):
    mcp.tool(function)
