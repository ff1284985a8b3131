"""Copies a file by shutil, imported by name, from a tool registered later."""

from shutil import copyfile

from fastmcp import FastMCP

mcp = FastMCP("small")


def duplicate(path: str) -> str:
    """Copy a file."""
    copyfile(path, "copy")  # expect: write-without-username
    return "copy"


mcp.add_tool(duplicate)
