"""Writes to a drive."""

import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def report(rows: list[dict[str, int]], username: str) -> str:
    """Write a report."""
    pd.DataFrame(rows).to_csv(r"C:\reports\report.csv")  # expect: write-outside-home
    return f"written for {username}"
