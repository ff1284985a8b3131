"""Two letters swapped."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def add(a: int, b: int) -> dict[str, object]:
    """Add two numbers."""
    return {
        "rseults": a + b,  # expect: misspelled-results
        "meta_data": {"unit": "none"},
    }
