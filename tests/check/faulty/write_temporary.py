"""Makes a temporary file."""

import tempfile

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def scratch(text: str) -> int:
    """Count the bytes of a text the long way."""
    with tempfile.NamedTemporaryFile("w+") as file:  # expect: write-without-username
        return file.write(text)
