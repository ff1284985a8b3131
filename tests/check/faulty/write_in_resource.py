"""A resource that writes: no resource may."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.resource("notes://{name}")
def note(name: str) -> str:
    """Read a note, and write down that it was read."""
    with open("read.log", "a") as log:  # expect: write-without-username
        log.write(name)
    return name
