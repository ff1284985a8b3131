"""Tools for a crowd of users: a file in the home, session state, and the limits of a worker."""

import os
import resource
from pathlib import Path

from fastmcp import Context, FastMCP

mcp = FastMCP("crowd")


@mcp.tool
def keep(username: str, text: str) -> list[str]:
    """Write a file that no result names, and return the names of such files."""
    Path(f"/tmp/{username}", text).write_text(text)
    return files(username)


@mcp.tool
def files(username: str) -> list[str]:
    """Return the names of files that `keep` wrote."""
    return sorted(name for name in os.listdir(f"/tmp/{username}") if name.startswith("kept"))


@mcp.tool
async def remember(ctx: Context, value: int) -> int:
    """Put something into the session's state."""
    await ctx.set_state("value", value)
    return value


@mcp.tool
async def recall(ctx: Context) -> int | None:
    """Return it."""
    return await ctx.get_state("value")


@mcp.tool
def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number


@mcp.tool
def open_files() -> list[int]:
    """Return the limit of descriptors of this worker."""
    return list(resource.getrlimit(resource.RLIMIT_NOFILE))
