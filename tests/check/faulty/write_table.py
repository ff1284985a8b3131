"""Writes a table by pandas."""

import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def table(rows: list[dict[str, int]]) -> str:
    """Write a table."""
    pd.DataFrame(rows).to_csv("table.csv", index=False)  # expect: write-without-username
    return "table.csv"
