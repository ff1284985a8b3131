"""A letter is missing, in a helper that makes the result."""

from fastmcp import FastMCP

mcp = FastMCP("small")


def answer(value: int) -> dict[str, object]:
    return {"reslts": value}  # expect: misspelled-results


@mcp.tool
def add(a: int, b: int) -> dict[str, object]:
    """Add two numbers."""
    return answer(a + b)
