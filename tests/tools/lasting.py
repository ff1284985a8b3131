"""Tools that take long enough to be watched, and end in every way."""

import os
import time

from fastmcp import Context, FastMCP

mcp = FastMCP("lasting")


@mcp.tool
async def lasts(ctx: Context, seconds: float = 0.3) -> str:
    await ctx.report_progress(1, 2, "begun")
    time.sleep(seconds)
    return "done"


@mcp.tool
def lasts_at_home(username: str, seconds: float = 0.3) -> str:
    time.sleep(seconds)
    return "done"


@mcp.tool
def fails() -> str:
    raise ValueError("on purpose")


@mcp.tool
def crashes() -> str:
    time.sleep(0.2)
    os._exit(3)
