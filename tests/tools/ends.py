"""A tool file whose tools end badly, or never."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from acts import leave_all, mark
from fastmcp import Context, FastMCP

mcp = FastMCP("ends")


@mcp.tool
def fine() -> str:
    """Answer."""
    return "fine"


@mcp.tool
def sleeps() -> str:
    """Sleep for ever."""
    time.sleep(3600)
    return "never"


@mcp.tool
def loops() -> str:
    """Compute for ever."""
    while True:
        pass


@mcp.tool
def holds() -> str:
    """Hold the interpreter's lock in C for ever."""
    ctypes.PyDLL(None).sleep(3600)
    return "never"


@mcp.tool
def stubborn() -> str:
    """Ignore every signal that can be ignored, for ever."""
    for number in range(1, 65):
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        except (OSError, ValueError):
            continue
    time.sleep(3600)
    return "never"


@mcp.tool
async def chatty(ctx: Context, seconds: float) -> str:
    """Report progress often."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
        await ctx.report_progress(count, None, f"report {count}")
        time.sleep(0.05)
    return f"reported {count}"


@mcp.tool
async def says(ctx: Context, count: int) -> str:
    """Send log messages, as fast as it goes."""
    for number in range(count):
        await ctx.info(str(number))
    return f"said {count}"


@mcp.tool
def marks(username: str) -> str:
    """Make a mark and hang."""
    mark(f"/tmp/{username}/mark")
    time.sleep(3600)
    return "never"


@mcp.tool
def leaves_partial(username: str) -> str:
    """Write a file and hang."""
    Path(f"/tmp/{username}/partial.txt").write_text("half")
    time.sleep(3600)
    return "never"


@mcp.tool
def survivors(username: str) -> str:
    """Leave processes behind in every way there is."""
    leave_all(f"/tmp/{username}")
    return "left"


@mcp.tool
def exits(status: int) -> str:
    """End the process without an answer."""
    print("last words", flush=True)
    os._exit(status)


@mcp.tool
def dies(number: int) -> str:
    """End the process by a signal."""
    os.kill(os.getpid(), number)
    time.sleep(3600)
    return "never"


@mcp.tool
def eats(megabytes: int) -> str:
    """Take memory."""
    return str(len([b"x" * 1_048_576 for _ in range(megabytes)]))


@mcp.tool
def floods(megabytes: int) -> str:
    """Write to standard output."""
    for _ in range(megabytes):
        sys.stdout.write("x" * 1_048_576)
    return "flooded"


@mcp.tool
def writes_garbage(times: int = 1) -> str:
    """Write an invalid frame to the host."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff" * 64 * times)
        except OSError:
            continue
    time.sleep(3600)
    return "never"
