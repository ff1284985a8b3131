"""Slow loops that say that they are alive, in several ways."""

import asyncio
import time
from pathlib import Path

import pandas as pd
from fastmcp import Context, FastMCP
from fastmcp.server.dependencies import get_context

mcp = FastMCP("Reports")


@mcp.tool
async def steps(count: int, ctx: Context) -> int:
    """Take steps and report each."""
    for step in range(count):
        await asyncio.sleep(1)
        await ctx.report_progress(step, count)
    return count


@mcp.tool
async def lines(filename: str, username: str, ctx: Context | None = None) -> int:
    """Count the lines of a file and log at intervals."""
    found = 0
    with open(filename) as file:
        for found, _ in enumerate(file, start=1):
            if found % 1000 == 0 and ctx is not None:
                await ctx.debug(f"{found} lines for {username}")
    return found


async def tell(done: int) -> None:
    await get_context().info(f"{done} done")


@mcp.tool
async def chunks(filename: str, username: str) -> int:
    """Read a table in pieces; a helper reports."""
    rows = 0
    for chunk in pd.read_csv(filename, chunksize=1000):
        rows += len(chunk)
        await tell(rows)
    return rows if username else 0


def waits(seconds: float) -> None:
    while seconds > 0:
        time.sleep(1)
        seconds -= 1


if __name__ == "__main__":
    waits(3)
    print(Path.cwd())
