"""Tools for `benchmarks.nodes`: one that does nothing, and two that take their time."""

import ctypes
import time

from fastmcp import FastMCP

mcp = FastMCP("nodes")
_SET_NAME = 15


def _named() -> None:
    """Be known by a name, so that others see whether this process still runs."""
    ctypes.CDLL(None).prctl(_SET_NAME, b"bench-sleeps", 0, 0, 0)


@mcp.tool
def echo(text: str) -> str:
    """Return the text."""
    return text


@mcp.tool
def sleep(seconds: float) -> str:
    """Wait."""
    _named()
    time.sleep(seconds)
    return "done"


@mcp.tool(annotations={"idempotentHint": True})
def sleep_again(seconds: float) -> str:
    """Wait; it may be done twice."""
    time.sleep(seconds)
    return "done"
