"""Sends its log to a file."""

import logging

from fastmcp import FastMCP

mcp = FastMCP("small")


logging.basicConfig(filename="tool.log", level=logging.INFO)  # expect: write-at-import


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
