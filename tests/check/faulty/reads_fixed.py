"""Reads a file that is there on one machine only."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def prices() -> str:
    """Return the price list."""
    with open("/data/prices.csv") as file:  # expect: fixed-path
        return file.read()
