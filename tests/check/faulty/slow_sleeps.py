"""Waits while it is imported."""

import time

from fastmcp import FastMCP

mcp = FastMCP("small")


time.sleep(0.01)  # expect: slow-import


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
