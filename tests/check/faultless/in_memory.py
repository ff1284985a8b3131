"""Writes to buffers in memory, which needs no file."""

import csv
import gzip
import io
import json
import sqlite3
import zipfile

import numpy as np
import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("Memory")


@mcp.tool
def texts(rows: list[dict[str, int]]) -> dict[str, object]:
    """Return a table in several forms."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    frame = pd.DataFrame(rows)
    dumped = io.StringIO()
    json.dump(rows, dumped)
    frame.to_csv(dumped, index=False)
    return {
        "csv": out.getvalue(),
        "frame": frame.to_csv(index=False),
        "json": frame.to_json(orient="records"),
    }


@mcp.tool
def packed(text: str) -> int:
    """Return how small a text gets."""
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb") as file:
        file.write(text.encode())
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        archive.writestr("text", text)
    np.save(buffer, np.zeros(3))
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (n integer)")
    return len(buffer.getvalue())
