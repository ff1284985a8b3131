"""Goes through a file line by line."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def count(filename: str, username: str) -> int:
    """Count the words of a file."""
    words = 0
    with open(filename) as file:
        for line in file:  # expect: silent-loop
            words += len(line.split())
    return words if username else 0
