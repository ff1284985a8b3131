"""Loops that are over at once: in memory, or over a few names written down."""

import math
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("Loops")


@mcp.tool
def primes(limit: int) -> list[int]:
    """Return the primes below a limit."""
    found: list[int] = []
    for number in range(2, limit):
        if all(number % prime for prime in found if prime <= math.isqrt(number)):
            found.append(number)
    return found


@mcp.tool
def letters(text: str, username: str) -> dict[str, object]:
    """Count letters and write the table."""
    counts = {letter: text.count(letter) for letter in sorted(set(text))}
    with Path(f"/tmp/{username}/letters.csv").open("w") as file:
        for letter, count in counts.items():
            file.write(f"{letter},{count}\n")
    return {"results": counts, "artifacts": [{"name": "letters.csv", "path": f"/tmp/{username}/letters.csv"}]}


@mcp.tool
def machine() -> dict[str, str]:
    """Return two facts of this machine."""
    return {name: Path("/etc", name).read_text() for name in ("hostname", "timezone")}
