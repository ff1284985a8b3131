"""Prints in a tool."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    print("shouting", text)  # expect: print-to-stdout
    return text.upper()
