"""Tools that take their time, one for each way a call can run out of it.

    runner call sample_tools/slow.py silent seconds=40        ended after 30 s of silence
    runner call sample_tools/slow.py steps count=8 seconds=5  40 s, but never silent: it answers

A call that is ended leaves no process behind, not even the stubborn one.
"""

import asyncio
import signal
import time

from fastmcp import Context, FastMCP

mcp = FastMCP("slow")


@mcp.tool
def silent(seconds: float) -> str:
    """Sleep without a word."""
    time.sleep(seconds)
    return f"slept {seconds} s"


@mcp.tool
def busy(seconds: float) -> str:
    """Keep a processor busy without a word."""
    end = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < end:
        turns += 1
    return f"counted to {turns}"


@mcp.tool
async def steps(count: int, seconds: float, ctx: Context) -> str:
    """Take `count` steps of `seconds` each and report every one."""
    for step in range(1, count + 1):
        await asyncio.sleep(seconds)
        await ctx.report_progress(step, count, f"step {step} of {count}")
    return f"took {count} steps"


@mcp.tool
async def stubborn(seconds: float) -> str:
    """Ignore the request to end, and every other message, while sleeping."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(seconds)  # noqa: ASYNC251 - blocking the loop is what this tool is for
    return f"slept {seconds} s"
