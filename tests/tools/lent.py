"""Tools that work on folders of the operator, and try to get further than what was lent."""

from pathlib import Path

from fastmcp import FastMCP
from lent_acts import attempt

mcp = FastMCP("lent")


@mcp.tool
def tries(acts: list[list[str]], username: str) -> list[str]:
    """Try each act, and say what came of it."""
    return [attempt(*act) for act in acts]


@mcp.tool
def other_tries(acts: list[list[str]], username: str) -> list[str]:
    """The same, for a tool with rights of its own."""
    return [attempt(*act) for act in acts]


@mcp.tool
def read(path: str) -> str:
    """Read a file as ordinary code does."""
    return Path(path).read_text()


@mcp.tool
def write(path: str, text: str) -> str:
    """Write a file as ordinary code does."""
    return str(Path(path).write_text(text))


@mcp.tool
def swallow(path: str) -> str:
    """Try to write a file, and keep quiet about it."""
    try:
        Path(path).write_text("x")
    except OSError as error:
        return str(error)
    return "written"
