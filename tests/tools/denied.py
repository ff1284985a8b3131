"""A tool file whose files are denied by the kernel alone, deep in libraries and programs."""

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Callable

from fastmcp import FastMCP

mcp = FastMCP("denied")


def _arrow(path: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), path)


def _polars(path: str) -> None:
    import polars as pl

    pl.DataFrame({"a": [1]}).write_csv(path)


def _attached(path: str) -> None:
    sqlite3.connect(":memory:").execute(f"attach database '{path}' as other")


def _by_uri(path: str) -> None:
    sqlite3.connect(f"file:{path}?mode=rwc", uri=True)


def _program(path: str) -> None:
    subprocess.run(["touch", path], check=True, capture_output=True)


def _listed(path: str) -> None:
    os.listdir(path)


def _read(path: str) -> None:
    open(path).close()


ACTS: dict[str, Callable[[str], None]] = {
    "pyarrow": _arrow,
    "polars": _polars,
    "attach": _attached,
    "uri": _by_uri,
    "program": _program,
    "list": _listed,
    "read": _read,
}


@mcp.tool
def act(name: str, path: str, username: str) -> str:
    """Do it."""
    ACTS[name](path)
    return "done"


@mcp.tool
def swallow(name: str, path: str, username: str) -> str:
    """Do it, and keep quiet about what came of it."""
    with contextlib.suppress(Exception):
        ACTS[name](path)
    return "kept quiet"
