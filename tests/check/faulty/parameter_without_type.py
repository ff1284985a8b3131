"""An argument without a type."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def shout(text) -> str:  # expect: unannotated-parameter
    """Return text in capitals."""
    return text.upper()
