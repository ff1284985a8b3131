"""Servers made by a subclass and by a function; tools added by hand."""

from fastmcp import FastMCP
from fastmcp.tools import Tool


class Named(FastMCP):
    """A server with a name."""


def make() -> "FastMCP":
    server = Named("By hand")

    @server.tool(annotations={"readOnlyHint": True})
    def double(number: int) -> int:
        """Return twice the number."""
        return number * 2

    return server


def half(number: float) -> float:
    """Return half of the number."""
    return number / 2


mcp = make()
mcp.add_tool(Tool.from_function(half, name="halve"))
