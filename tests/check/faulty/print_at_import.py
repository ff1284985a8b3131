"""Prints while it is imported."""

from fastmcp import FastMCP

mcp = FastMCP("small")


print("ready")  # expect: print-to-stdout


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
