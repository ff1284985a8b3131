"""`result` and nothing else."""

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"result": a + b}  # expect: result-for-results
