"""A tool that does not say what it does."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def shout(text: str) -> str:  # expect: missing-docstring
    return text.upper()
