"""Computes for long while it is imported."""

import time

from fastmcp import FastMCP

mcp = FastMCP("small")


def warm_up(seconds: float) -> int:
    turns, end = 0, time.process_time() + seconds
    while time.process_time() < end:
        turns += 1
    return turns


TURNS = warm_up(1.6)  # expect: slow-import


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
