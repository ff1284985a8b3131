"""Reads in many ways and writes in none, without a home."""

import json
import os
import sqlite3
import zipfile
from pathlib import Path

import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("Reads")

WORDS = Path(__file__).with_name("echo.py")


@mcp.tool
def look(path: str) -> dict[str, object]:
    """Look at a file without changing it."""
    with open(path) as file:
        first = file.readline()
    with open(path, "rb") as raw:
        head = raw.read(4)
    size = Path(path).stat().st_size
    names = os.listdir(os.path.dirname(path))
    return {
        "first": first,
        "head": head.hex(),
        "size": size,
        "names": names,
        "host": Path("/etc/hostname").exists(),
    }


@mcp.tool
def ask(database: str) -> int:
    """Count the rows of a table."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return int(connection.execute("select count(*) from t").fetchone()[0])


@mcp.tool
def inside(archive: str) -> list[str]:
    """Return what is in an archive."""
    with zipfile.ZipFile(archive) as opened:
        return opened.namelist()


@mcp.tool
def words() -> int:
    """Count the letters of a file beside this one."""
    return len(WORDS.read_text()) + len(Path("/etc/services").read_text())


@mcp.tool
def renamed(rows: list[dict[str, int]]) -> str:
    """Rename columns, replace text: no file is meant."""
    frame = pd.DataFrame(rows).rename(columns={"a": "b"})
    return json.dumps(frame.to_dict()).replace("b", "c")
