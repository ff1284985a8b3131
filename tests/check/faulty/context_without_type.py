"""A context without its type is an argument like any other."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
async def shout(
    text: str,
    ctx,  # expect: unannotated-parameter
) -> str:
    """Return text in capitals."""
    await ctx.info("shouting")
    return text.upper()
