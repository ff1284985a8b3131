"""Data frames in and out: a table becomes Parquet, and a report of sums.

    pip install '.[samples]'        pandas writes Parquet with pyarrow
    runner call sample_tools/data_frames.py process_data filename=@sample_tools/data/sales.csv
    runner call sample_tools/data_frames.py analyze_dataset filename=@sample_tools/data/sales.csv

The files are named by their paths, whatever their size: what becomes of them is nothing a tool needs to know.

Source: document 001, sections 5.2, 10.1 and 10.2; requirements S1-58, S1-107 to S1-109 and S1-112.
"""

from typing import Any

import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("data-frames")


@mcp.tool()
def process_data(filename: str, username: str) -> dict[str, Any]:
    """Turn a CSV file into Parquet."""
    df = pd.read_csv(filename)

    output_path = f"/tmp/{username}/processed_data.parquet"
    df.to_parquet(output_path)

    return {
        "artifacts": [
            {
                "name": "processed_data.parquet",
                "path": output_path,
                "mime": "application/octet-stream",
            }
        ]
    }


@mcp.tool()
def analyze_dataset(filename: str, username: str, by: str = "region") -> dict[str, Any]:
    """Sum up the revenue of a CSV file by one of its columns."""
    df = pd.read_csv(filename)
    results = df.groupby(by).agg({"revenue": "sum"})

    output_path = f"/tmp/{username}/analysis_results.html"
    results.to_html(output_path)

    return {
        "results": {"rows_processed": len(df)},
        "artifacts": [
            {
                "name": "analysis_results.html",
                "path": output_path,
                "mime": "text/html",
                "description": "Analysis results report",
            }
        ],
    }
