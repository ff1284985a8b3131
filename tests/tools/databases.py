"""A tool file that works with DuckDB, which reads /proc/self/cgroup unless it is told what to plan with."""

import os
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("databases")

LIMITS = ("SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE")


def _sum_through_files(home: Path) -> int:
    import duckdb

    with duckdb.connect(home / "numbers.duckdb") as database:
        database.execute("create or replace table numbers as select range as n from range(1000)")
        database.execute(f"copy numbers to '{home}/numbers.parquet'")
        row = database.execute(f"select sum(n)::int from '{home}/numbers.parquet'").fetchone()
    return int(row[0]) if row else 0


@mcp.tool
def with_limits(username: str) -> dict[str, Any]:
    """Use DuckDB with the environment of a worker."""
    import duckdb

    summed = _sum_through_files(Path.home())
    with duckdb.connect() as database:
        row = database.execute("select current_setting('threads')").fetchone()
    return {"sum": summed, "threads": row[0] if row else None}


@mcp.tool
def without_limits(username: str) -> int:
    """Use DuckDB in a child without the variables of limits; return the child's wait status."""
    child = os.fork()
    if child == 0:
        for name in LIMITS:
            os.environ.pop(name, None)
        _sum_through_files(Path.home())
        os._exit(0)
    return os.waitpid(child, 0)[1]
