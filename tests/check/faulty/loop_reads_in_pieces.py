"""Reads a file piece by piece, in a helper."""

import hashlib
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(65536):  # expect: silent-loop
            found.update(piece)
    return found.hexdigest()


@mcp.tool
def sha256(filename: str, username: str) -> str:
    """Return the digest of a file."""
    return digest(Path(filename)) if username else ""
