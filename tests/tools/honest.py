"""Tools as people write them: libraries and programs used as anywhere else, unchanged."""

import asyncio
import concurrent.futures
import getpass
import locale
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fastmcp import FastMCP

mcp = FastMCP("honest")


@mcp.tool
def frames(username: str) -> dict[str, Any]:
    """Write and read a table in three forms."""
    frame = pd.DataFrame({"a": range(1000), "b": [f"row {n}" for n in range(1000)]})
    home = Path.home()
    frame.to_csv(home / "t.csv", index=False)
    frame.to_parquet(home / "t.parquet")
    frame.to_pickle(f"/tmp/{username}/t.pickle")
    return {
        "csv": len(pd.read_csv(home / "t.csv")),
        "parquet": len(pd.read_parquet(home / "t.parquet")),
        "pickle": len(pd.read_pickle(home / "t.pickle")),
    }


@mcp.tool
def arrow(username: str) -> int:
    """Write and read a parquet file by pyarrow itself."""
    path = f"/tmp/{username}/arrow.parquet"
    pq.write_table(pa.table({"n": list(range(100))}), path)
    return pq.read_table(path).num_rows


@mcp.tool
def chart(username: str) -> dict[str, Any]:
    """Draw a chart."""
    figure, axes = plt.subplots()
    axes.plot(np.cumsum(np.random.default_rng(1).normal(size=100)))
    axes.set_title("Ünïcode")
    path = f"/tmp/{username}/chart.png"
    figure.savefig(path)
    return {"results": "drawn", "artifacts": [{"name": "chart.png", "path": path, "mime": "image/png"}]}


@mcp.tool
def database(username: str) -> dict[str, Any]:
    """Use SQLite with a write-ahead log."""
    with sqlite3.connect(f"/tmp/{username}/data.db") as connection:
        mode = connection.execute("pragma journal_mode=wal").fetchone()[0]
        connection.execute("create table t (n integer)")
        connection.executemany("insert into t values (?)", [(n,) for n in range(100)])
        total = connection.execute("select sum(n) from t").fetchone()[0]
    return {"mode": mode, "total": total}


@mcp.tool
def archive(username: str) -> list[str]:
    """Pack and unpack."""
    home = Path.home()
    with zipfile.ZipFile(home / "a.zip", "w") as packed:
        packed.writestr("one.txt", "1")
    shutil.unpack_archive(home / "a.zip", home / "unpacked")
    shutil.copytree(home / "unpacked", home / "copied")
    return sorted(path.name for path in (home / "copied").iterdir())


@mcp.tool
def scratch(username: str) -> dict[str, Any]:
    """Use temporary files and folders."""
    with tempfile.NamedTemporaryFile("w+") as file, tempfile.TemporaryDirectory() as folder:
        file.write("x")
        file.flush()
        Path(folder, "inner").write_text("y")
        return {"file": file.name, "folder": folder, "size": os.path.getsize(file.name)}


@mcp.tool
def programs(username: str) -> dict[str, str]:
    """Run programs."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q", "repo"], check=True)
    Path("repo/file").write_text("x")
    subprocess.run([*git, "-C", "repo", "add", "."], check=True)
    subprocess.run([*git, "-C", "repo", "commit", "-q", "-m", "one"], check=True)
    count = subprocess.run(
        ["git", "-C", "repo", "rev-list", "--count", "HEAD"], capture_output=True, text=True
    )
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
    sums = subprocess.run([sys.executable, "-c", "print(6*7)"], capture_output=True, text=True, check=True)
    shell = subprocess.run("echo $HOME | tr a-z A-Z", shell=True, capture_output=True, text=True)
    return {
        "git": version.split()[0],
        "commits": count.stdout.strip(),
        "python": sums.stdout.strip(),
        "shell": shell.stdout.strip(),
    }


@mcp.tool
async def parallel() -> dict[str, Any]:
    """Use threads, a thread pool and tasks."""
    seen: list[int] = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        squares = list(pool.map(lambda n: n * n, range(5)))
    tasks = await asyncio.gather(*(asyncio.to_thread(pow, n, 2) for n in range(3)))
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return {"threads": sorted(seen), "pool": squares, "tasks": tasks, "process": output.decode().strip()}


@mcp.tool
def surroundings(username: str) -> dict[str, Any]:
    """Look around as libraries do."""
    logging.FileHandler(Path.home() / "tool.log").close()
    return {
        "user": getpass.getuser(),
        "home": str(Path.home()),
        "encoding": locale.getpreferredencoding(),
        "summer": datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")).isoformat(),
        "cpus": (os.cpu_count() or 0) > 0,
    }


@mcp.tool
def chance() -> list[float]:
    """Draw random numbers of every kind."""
    return [random.random(), float(np.random.rand())]


@mcp.tool
def warm_up_is_read_only(username: str) -> bool:
    """Return whether the files of the import can be changed by a call."""
    import matplotlib

    folder = Path(matplotlib.get_cachedir())
    try:
        (folder / "new").write_text("x")
    except PermissionError:
        return folder.is_dir()
    return False
