"""Leaves the home by its parent."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def report(text: str, username: str) -> str:
    """Write a report."""
    target = Path(f"/tmp/{username}/../shared/report.txt")  # expect: write-outside-home
    target.write_text(text)
    return "written"
