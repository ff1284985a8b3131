"""Makes a folder by os."""

import os

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def folder(name: str) -> str:
    """Make a folder."""
    os.makedirs(name, exist_ok=True)  # expect: write-without-username
    return name
