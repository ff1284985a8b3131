"""Writes to a folder of the machine."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def report(text: str, username: str) -> str:
    """Write a report."""
    Path("/var/reports/report.txt").write_text(text)  # expect: write-outside-home
    return f"written for {username}"
