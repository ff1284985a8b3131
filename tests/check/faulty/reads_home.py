"""Reads a file in somebody's folder."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def prices() -> str:
    """Return the price list."""
    return Path("/home/alice/prices.csv").read_text()  # expect: unreadable-path
