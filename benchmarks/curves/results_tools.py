"""The tool file of the curve of results: a tool that writes a file of any size and returns it by its path."""

import os
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

__all__ = ["make", "mcp"]

mcp = FastMCP("results")

_BLOCK = os.urandom(1 << 20)
_MARK_BYTES = 16


@mcp.tool
def make(username: str, kib: int) -> dict[str, Any]:
    """Write a file of so many KiB into the home, of a content that no other has, and return it."""
    path = Path(os.environ["HOME"], "result.bin")
    left = kib * 1024 - _MARK_BYTES
    with path.open("wb") as file:
        file.write(os.urandom(_MARK_BYTES))
        while left > 0:
            left -= file.write(_BLOCK[:left])
    return {"results": {"kib": kib}, "artifacts": [{"path": str(path), "name": path.name}]}
