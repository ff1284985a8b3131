"""Makes its folder while it is imported, in a function."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


def prepare() -> Path:
    folder = Path("/tmp/cache-of-a-tool")
    folder.mkdir(exist_ok=True)  # expect: write-at-import
    return folder


CACHE = prepare()


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
