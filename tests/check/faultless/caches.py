"""Caches, constants and names of its own: what may be lost, or is the same in every process."""

from functools import lru_cache

from fastmcp import FastMCP

mcp = FastMCP("small")
UNITS = {"m": 1.0, "km": 1000.0}
SEEN: dict[str, str] = {}
rows: list[str] = []


def remembered(text: str) -> str:
    """Return text in capitals, worked out once."""
    if text not in SEEN:
        SEEN[text] = text.upper()
    return SEEN[text]


@lru_cache
def length(unit: str) -> float:
    """Return how long a unit is."""
    return UNITS[unit]


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return remembered(text)


@mcp.tool
def cry(text: str) -> str:
    """Return text in capitals, and louder."""
    return remembered(text) + "!" * int(length("m"))


@mcp.tool
def split(text: str) -> list[str]:
    """Return the lines of a text."""
    rows = []
    rows.extend(text.splitlines())
    return rows


@mcp.tool
def count(rows: list[str]) -> int:
    """Return how many lines there are."""
    rows.pop()
    return len(rows)
