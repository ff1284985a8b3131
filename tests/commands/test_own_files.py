"""Files of a worker in /proc, readable for that worker alone where the kernel allows it."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.own_files import OWN

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel]

TOOL = "own_files.py"

NOBODY = 65534
WHERE = [("process", 0), ("process", NOBODY), ("user", 0), ("namespace", 0), ("namespace", NOBODY)]

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(anybody: tuple[Path, Path]) -> Iterator[Run]:
    """Run `runner call` in a tier, as a user id, with settings; return its result."""
    folders: list[str] = []

    def run_call(tier: str, uid: int, tool: str, *inputs: str, **settings: str) -> dict[str, Any]:
        folder = tempfile.mkdtemp(prefix="toolcell-own-state-", dir="/var/tmp")
        folders.append(folder)
        os.chown(folder, uid, uid)
        python, file = anybody
        ended = subprocess.run(
            [python, "-m", "runner.cli.app", "call", file, tool, *inputs, "--isolation", tier, "--json"],
            env={
                "PATH": "/usr/bin:/bin",
                "RUNNER_USER": f"t-own-{uid}",
                "RUNNER_STATE_DIR": f"{folder}/state",
                "RUNNER_STORE": f"file://{folder}/store",
                **settings,
            },
            cwd="/",
            capture_output=True,
            text=True,
            timeout=100,
            user=uid,
            group=uid,
            extra_groups=[],
            check=False,
        )
        assert ended.stdout, ended.stderr
        value: dict[str, Any] = json.loads(ended.stdout)
        return value

    yield run_call
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
def stranger() -> Iterator[Callable[[int], int]]:
    """Start a process of a user id that is in no tier at all; return its number."""
    started: list[subprocess.Popen[bytes]] = []

    def start(uid: int) -> int:
        started.append(
            subprocess.Popen(
                ["/bin/sleep", "600"],
                user=uid,
                group=uid,
                extra_groups=[],
            )
        )
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("tier", "uid"), WHERE)
@pytest.mark.parametrize("start", ["fork", "load"])
def test_worker_reads_own_proc_files_never_those_of_others(
    run: Run, stranger: Callable[[int], int], tier: str, uid: int, start: str
) -> None:
    other = stranger(uid)
    command = ["/bin/cat", f"/proc/{other}/status", f"/proc/{other}/maps", f"/proc/{other}/cgroup"]
    control = subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True, check=False)

    found = run(tier, uid, "reads", f"other={other}", RUNNER_WORKER_START=start)["results"]

    assert (control.returncode, control.stderr) == (0, b"")
    own = "EACCES" if start == "fork" and tier != "namespace" else "read"
    # With namespaces there is no such process.
    others = "ENOENT" if tier == "namespace" else "EACCES"
    assert found == {
        "own": {name: [own] * 4 for name in OWN},
        "other": {name: [others] * 2 for name in OWN},
    }


@pytest.mark.parametrize(("start", "has_suggestion"), [("load", False), ("fork", True)])
def test_library_denied_own_proc_files_gets_suggestion(run: Run, start: str, has_suggestion: bool) -> None:
    answer = run("process", 0, "memory", RUNNER_WORKER_START=start)

    metadata = answer.get("meta_data", {})
    assert metadata.get("error_code") == ("E_INVALID_PATH" if has_suggestion else None), answer
    assert ('worker_start = "load"' in metadata.get("details", {}).get("suggestion", "")) is has_suggestion
