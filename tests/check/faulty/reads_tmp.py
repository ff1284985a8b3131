"""Reads from /tmp directly, where nothing can be read."""

import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("small")


PRICES = "/tmp/prices.csv"  # expect: unreadable-path


@mcp.tool
def prices() -> int:
    """Return how many prices there are."""
    return len(pd.read_csv(PRICES))
