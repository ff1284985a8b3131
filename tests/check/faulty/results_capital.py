"""A capital letter, in a dict that has a name first."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def add(a: int, b: int) -> dict[str, object]:
    """Add two numbers."""
    answer = {"Results": a + b}  # expect: misspelled-results
    return answer
