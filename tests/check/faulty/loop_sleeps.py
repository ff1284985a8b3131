"""Waits in a loop."""

import time

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def wait(turns: int) -> str:
    """Wait."""
    for _ in range(turns):  # expect: silent-loop
        time.sleep(2)
    return "done"
