"""Values as they come, without an envelope; `result` is one key among others."""

from fastmcp import FastMCP

mcp = FastMCP("Bare")


@mcp.tool
def evaluate(a: int, b: int) -> dict[str, object]:
    """Multiply two numbers and say how."""
    return {"operation": "evaluate", "expression": f"{a}*{b}", "result": a * b}


@mcp.tool
def resorts(country: str) -> dict[str, object]:
    """Return places to stay."""
    return {"resorts": [f"{country} Hills"], "metadata": {"source": "none"}}
