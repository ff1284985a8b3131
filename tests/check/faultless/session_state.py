"""After FastMCP's example of persistent state (Apache-2.0), rewritten."""

from fastmcp import FastMCP
from fastmcp.server.context import Context

server = FastMCP("State")


@server.tool
async def set_value(key: str, value: str, ctx: Context) -> str:
    """Keep a value for the session."""
    await ctx.set_state(key, value)
    return f"kept {key!r}"


@server.tool
async def get_value(key: str, ctx: Context) -> str:
    """Return a value of the session."""
    value = await ctx.get_state(key)
    return f"nothing is kept as {key!r}" if value is None else f"{key!r} is {value!r}"


if __name__ == "__main__":
    server.run(transport="streamable-http")
