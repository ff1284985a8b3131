"""Counts in a helper what a resource tells."""

from fastmcp import FastMCP

mcp = FastMCP("small")
calls = 0


def count() -> None:
    global calls
    calls += 1  # expect: store-in-memory


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    count()
    return text.upper()


@mcp.resource("asked://times")
def times() -> str:
    """Return the number of calls."""
    return str(calls)
