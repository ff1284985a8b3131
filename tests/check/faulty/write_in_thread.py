"""Hands the writing function to a thread."""

import asyncio
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


def store(text: str) -> None:
    with Path("note.txt").open("x") as file:  # expect: write-without-username
        file.write(text)


@mcp.tool
async def note(text: str) -> str:
    """Keep a note."""
    await asyncio.to_thread(store, text)
    return "kept"
