"""Is given files and no home."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def names(
    filenames: list[str],  # expect: filename-without-username
) -> list[str]:
    """Return the names of the files."""
    return [Path(name).name for name in filenames]
