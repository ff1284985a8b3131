"""Packs an archive."""

import zipfile

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def pack(text: str) -> str:
    """Pack a text."""
    with zipfile.ZipFile("texts.zip", "w") as archive:  # expect: write-without-username
        archive.writestr("text.txt", text)
    return "texts.zip"
