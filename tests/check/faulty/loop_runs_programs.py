"""Runs a program for each argument."""

import subprocess

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def lines(words: list[str]) -> list[str]:
    """Return each word by way of a program."""
    found = []
    for word in words:  # expect: silent-loop
        done = subprocess.run(["echo", word], capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    return found
