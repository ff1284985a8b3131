"""Warm-ups: done once in the zygote, never at the price of a call."""

import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from somebody import somebody
from support import TOOLS, call, open_toolset

from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "warms_up.py"


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    # Each call a process, so that what they have in common is their zygote's.
    async with open_toolset(FILE, tmp_path_factory.mktemp("warms"), worker_reuse="call") as it:
        yield it


async def reports(toolset: Toolset) -> dict[str, Any]:
    with somebody() as user:
        results: dict[str, Any] = (await call(toolset, user, "report")).processed.value["results"]
    return results


async def test_warmup_called_once_before_first_worker(toolset: Toolset) -> None:
    with somebody() as user:
        first, second = [(await call(toolset, user, "report")).processed.value["results"] for _ in range(2)]

    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"]
    assert first["seen"] == second["seen"] == [["usual", first["parent"]]]


async def test_warmup_starting_thread_skipped_workers_still_forked(toolset: Toolset) -> None:
    results = await reports(toolset)

    # Else each worker would be an interpreter of its own, which has loaded the file itself.
    assert results["seen"] == [["usual", results["parent"]]]


async def test_skipped_warmups_reported_to_author_with_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async with open_toolset(FILE, tmp_path) as toolset:
        await reports(toolset)

    lines = [str(getattr(record, "line", "")) for record in caplog.records]
    assert "warm-up broken was left out: ValueError: no model here" in lines
    assert any(line.startswith("warm-up threaded was left out: it starts threads") for line in lines)
    # By Landlock, or by a mount.
    assert any(line.startswith("warm-up burglar was left out: ") for line in lines)
    assert not any("warm-up usual" in line for line in lines)


async def test_warmup_may_write_no_more_than_import(toolset: Toolset) -> None:
    await reports(toolset)

    assert not Path("/tmp/toolcell-burglar").exists()


async def test_single_call_does_not_wait_for_warmups(tmp_path: Path) -> None:
    with somebody() as user:
        async with open_toolset(FILE, tmp_path, user, keep_s=60) as toolset:
            results = (await call(toolset, user, "report")).processed.value["results"]

    assert results["seen"] == []


async def test_known_libraries_preload_their_late_imports(tmp_path: Path) -> None:
    file = tmp_path / "analyst.py"
    # Only what a file imports is warmed up.
    file.write_text(f"import pandas, matplotlib.figure\n{FILE.read_text()}")

    with somebody() as user:
        async with open_toolset(file, tmp_path) as toolset:
            late = (await call(toolset, user, "late_imports")).processed.value["results"]
        async with open_toolset(file, tmp_path, user, keep_s=60) as toolset:
            cold = (await call(toolset, user, "late_imports")).processed.value["results"]

    assert late == []
    assert cold


ACTS = {
    "hangs": ("import time; time.sleep(600)", "it took longer than 1 seconds"),
    "exits": ("import os; os._exit(7)", "it ended its process"),
    "leaves": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "it ended its process with SIGKILL"),
    "raises": ("raise OSError(28, 'No space left')", "OSError: [Errno 28] No space left"),
    "leaves a process": (
        "import os, time; os.fork() or (os.closerange(0, 3), time.sleep(90), os._exit(0)); raise OSError(5)",
        "OSError: 5",
    ),
    "cannot be encoded": ("raise ValueError('\\udcff')", "ValueError: \\udcff"),
}


@pytest.mark.parametrize("act", ACTS)
def test_zygote_survives_any_warmup(act: str) -> None:
    code, reason = ACTS[act]
    program = f"""
import runner.author
import runner.worker.warmup
runner.worker.warmup._LONGEST_S = 1

@runner.author.warm_up
def act():
    {code}

@runner.author.warm_up
def after():
    global done
    done = True

warmups = runner.worker.warmup.Warmups()
warmups.run()
print("goes on", done)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert ran.stdout == "goes on True\n"
    assert ran.stderr == f"warm-up act was left out: {reason}\n"
