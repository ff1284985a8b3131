"""The tool file that both servers serve: tools that do nothing, so that only the way to them is timed."""

from fastmcp import FastMCP

__all__ = ["echo", "echo_async", "echo_home", "mcp"]

mcp = FastMCP("bench")


@mcp.tool
def echo(text: str) -> str:
    """Return the text, from a sync function."""
    return text


@mcp.tool
async def echo_async(text: str) -> str:
    """Return the text, from an async function."""
    return text


@mcp.tool
def echo_home(text: str, username: str) -> str:
    """Return the text, from a sync function that has a home."""
    return f"{username}: {text}"
