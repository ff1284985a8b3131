"""The folder is a constant at the top: that is the line to change."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


OUTPUT = Path("/data/out")  # expect: write-outside-home


@mcp.tool
def report(text: str, username: str) -> str:
    """Write a report."""
    target = OUTPUT / f"{username}.txt"
    target.write_text(text)
    return "written"
