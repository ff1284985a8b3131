"""Run every tool of `compat_tools.py` through the runner in every tier, and write down what worked.

`scripts/compat` writes it into docs/compatibility.md.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCUMENT = ROOT / "docs" / "compatibility.md"
TIERS = ("process", "user", "namespace")
PATIENCE_S = 300


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        tool: The tool that tries it.
        what: What it tries, for people.
        remark: Why it does not work where it does not, and what to do instead.
    """

    tool: str
    what: str
    remark: str = ""


ROWS = (
    Row("pandas", "pandas: CSV, parquet, JSON, pickle, SQL"),
    Row("numpy", "NumPy: arrays, archives, memory maps"),
    Row("matplotlib", "matplotlib: PNG, PDF, SVG"),
    Row("pyarrow", "pyarrow: parquet, partitioned datasets"),
    Row("polars", "polars: parquet, CSV, lazy queries on its own threads"),
    Row("sklearn", "scikit-learn, also with `n_jobs`", "`n_jobs` runs in threads or in turn."),
    Row("joblib", "joblib: `Parallel`", "Runs in turn: its processes would be newly started interpreters."),
    Row("pillow", "Pillow: PNG, JPEG, GIF, WebP, TIFF"),
    Row("sqlite", "SQLite with a write-ahead log, several connections"),
    Row("git", "git: init, commit, clone, diff, gc"),
    Row("programs", "programs, as ffmpeg is used: pipes, shells, several at once, a kill"),
    Row("threads", "threads and thread pools"),
    Row("tasks", "asyncio: tasks, threads, subprocesses, socket pairs"),
    Row("pool", "`multiprocessing.Pool`"),
    Row("pool_without_home", "`multiprocessing.Pool` in a tool without `username`"),
    Row("executor", "`concurrent.futures.ProcessPoolExecutor`"),
    Row("shared", "`SharedMemory`, `Queue`, `Event`", "The memory is a file below `.shm` of the home."),
    Row("locks", "`Value`, `Array`, `Lock`, `Semaphore`"),
    Row(
        "spawned",
        '`get_context("spawn")`, `"forkserver"`',
        "Their locks lie in `/dev/shm`, one folder for all users: use the default, `fork`.",
    ),
    Row(
        "manager",
        "`multiprocessing.Manager`",
        "It listens on a socket: share a `Queue`, `Value` or `SharedMemory`.",
    ),
    Row("temporary", "tempfile: files and folders", "They lie below `.tmp` of the home."),
    Row("archives", "zipfile, tarfile, shutil"),
    Row("files", "links, locks, memory maps, renames, log files in the home"),
    Row(
        "modes",
        "`chmod` that takes effect",
        "It answers success and changes nothing: homes may share an owner.",
    ),
    Row(
        "times",
        "times of files",
        "Where homes may share an owner, `os.utime` fails; `shutil` copies without them.",
    ),
    Row("own_programs", "running a program that the call wrote", "What can be written cannot be executed."),
    Row("surroundings", "user name, home, working folder, processors"),
    Row("languages", "locale, UTF-8 names and texts"),
    Row("zones", "time zones"),
    Row("foreign_functions", "ctypes with callbacks"),
    Row("configuration", "system files such as `/etc/os-release`, another Python"),
    Row("processes", "`ps`", "Where `/proc` is everybody's it cannot be listed: it names their processes."),
    Row("root_folder", "`ls /`", "Who may list it may list all that lies below, the names of homes too."),
    Row(
        "listens", "listening on a port, connecting to it", "Tools have no network unless they are given one."
    ),
)

_INTRODUCTION = """\
# Compatibility

`scripts/compat` writes this page from what it runs.

## What tools do

What tools do elsewhere, tried in every [isolation tier](isolation.md). Each line is a tool of
`tests/compat/compat_tools.py` that checks what it did. A test holds this table against what really happens.

| what | process | user | namespace | remark |
| --- | --- | --- | --- | --- |
"""


def survey(outcomes: Mapping[str, Mapping[str, str]]) -> str:
    """Return the first part of the page, which says what worked.

    Args:
        outcomes: For each tier how each tool ended, `works` or its error.
    """
    lines = []
    for row in ROWS:
        toolsets = ["yes" if outcomes[tier][row.tool] == "works" else "no" for tier in TIERS]
        lines.append(f"| {row.what} | {' | '.join(toolsets)} | {row.remark} |\n")
    return _INTRODUCTION + "".join(lines)


def outcomes_in_every_tier(python: Path, tool_file: Path) -> dict[str, dict[str, str]]:
    """Run every tool in every tier, the tiers at the same time.

    Args:
        python: An interpreter that every user id can run, with the runner and the libraries.
        tool_file: `compat_tools.py`, where every user id can read it.
    """
    with ThreadPoolExecutor(len(TIERS)) as pool:
        found = pool.map(lambda tier: _outcomes(python, tool_file, tier), TIERS)
        return dict(zip(TIERS, found, strict=True))


def _outcomes(python: Path, tool_file: Path, tier: str) -> dict[str, str]:
    user = f"t-{uuid.uuid4().hex[:12]}"
    folder = Path(tempfile.mkdtemp(prefix="toolcell-compat-", dir="/var/tmp"))
    command = [python, HERE / "compat_driver.py", tier, folder, tool_file, user]
    try:
        ended = subprocess.run(
            list(map(str, command)),
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(f"/tmp/{user}", ignore_errors=True)
    assert ended.returncode == 0, f"tier {tier}: {ended.stderr[-4000:]}"
    outcomes: dict[str, str] = json.loads(ended.stdout)
    return outcomes


@contextlib.contextmanager
def for_anybody() -> Iterator[tuple[Path, Path]]:
    """Yield an interpreter and the tool file, where every user id can read them."""
    from attack_support import interpreter_for_anybody, opened

    assert os.geteuid() == 0, "the tier user is for a server that root starts; run this as root"
    top = Path(tempfile.mkdtemp(prefix="toolcell-compat-", dir="/var/tmp"))
    top.chmod(0o755)
    try:
        yield interpreter_for_anybody(top), opened(HERE, top / "compat") / "compat_tools.py"
    finally:
        shutil.rmtree(top)
