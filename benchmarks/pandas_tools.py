"""The tool file with pandas that all serve or run: a small table, grouped and summed."""

import pandas as pd
from fastmcp import FastMCP

__all__ = ["mcp", "totals"]

mcp = FastMCP("bench-pandas")


@mcp.tool
async def totals(text: str) -> str:
    """Return how often each letter of the text is there, by way of a data frame."""
    frame = pd.DataFrame({"letter": list(text), "count": 1})
    counted: str = frame.groupby("letter", sort=True)["count"].sum().to_json()
    return counted
