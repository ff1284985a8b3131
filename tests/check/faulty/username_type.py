"""Asks for who calls in a form in which nobody is told."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def mine(
    username: int | None,  # expect: username-type
) -> str:
    """Say who calls."""
    return str(username)
