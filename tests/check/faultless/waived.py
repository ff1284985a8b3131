"""Findings that a comment waives, each on its line."""

from fastmcp import FastMCP

mcp = FastMCP("Waived")


@mcp.tool
def shout(text) -> str:  # runner: ignore[unannotated-parameter, missing-docstring]
    print("shouting")  # runner: ignore[print-to-stdout]
    return text.upper()
