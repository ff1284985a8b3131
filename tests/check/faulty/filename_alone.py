"""Is given a file and no home."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def count(
    filename: str,  # expect: filename-without-username
) -> int:
    """Count the bytes of a file."""
    return Path(filename).stat().st_size
