"""Writes to /tmp itself, not to the home in it."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def report(text: str, username: str) -> str:
    """Write a report."""
    with open(f"/tmp/{username}.txt", "w") as file:  # expect: write-outside-home
        file.write(text)
    return "written"
