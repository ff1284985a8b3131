"""Starts a thread while it is imported."""

import threading

from fastmcp import FastMCP

mcp = FastMCP("small")


threading.Thread(target=threading.Event().wait, daemon=True).start()  # expect: threads-at-import


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
