"""Writes to standard output in a helper."""

import sys

from fastmcp import FastMCP

mcp = FastMCP("small")


def trace(text: str) -> None:
    sys.stdout.write(text + "\n")  # expect: print-to-stdout


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    trace(text)
    return text.upper()
