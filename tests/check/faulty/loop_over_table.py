"""Reads a table in pieces."""

import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def total(filename: str, username: str) -> float:
    """Sum up a column."""
    found = 0.0
    for chunk in pd.read_csv(filename, chunksize=10_000):  # expect: silent-loop
        found += float(chunk["revenue"].sum())
    return found if username else 0.0
