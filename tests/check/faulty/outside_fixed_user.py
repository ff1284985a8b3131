"""Writes to the home of one fixed user."""

import os

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def report(text: str, username: str) -> str:
    """Write a report."""
    target = os.path.join("/tmp/alice", "report.txt")  # expect: write-outside-home
    with open(target, "w") as file:
        file.write(text)
    return f"written for {username}"
