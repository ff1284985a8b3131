"""A command run confined from its streams' side: its status, its end, and the end of its parent."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, alive

from sandbox.policy import Policy
from sandbox.readable import default_read

pytestmark = pytest.mark.kernel

SHELL = "/bin/sh"


@pytest.fixture
def host() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that the launcher takes for the one that started it."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def launch(
    folder: Path, host: "subprocess.Popen[bytes]", *command: str, home: Path | None = None, code: str = ""
) -> "subprocess.Popen[str]":
    place = home or folder / "home"
    if home is None:
        place.mkdir(mode=0o700)
    read, listed, names = default_read(deny=(), beside=[Path(SHELL)], extra=())
    policy = Policy(
        home=place,
        read=read,
        list_only=listed,
        names=names,
        environment={"PATH": "/usr/bin:/bin", "A": "b"},
        guard=False,
    )
    file = folder / "policy.json"
    file.write_text(json.dumps(policy.to_json()))
    arguments = [str(file), str(host.pid), *command]
    return subprocess.Popen(
        [sys.executable, "-P", *(["-c", code] if code else ["-m", "sandbox.inside.exec_main"]), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OUR": "secret"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 180
    while alive(pid) and time.monotonic() < deadline:
        os.sched_yield()
    return not alive(pid)


def test_command_gets_our_streams_own_environment_and_status(tmp_path: Path, host: Any) -> None:
    process = launch(tmp_path, host, SHELL, "-c", "read line; echo $line $A [$OUR] $PWD; touch here; exit 7")

    out, err = process.communicate("hello\n", timeout=120)

    assert (out, process.returncode) == (f"hello b [] {tmp_path}/home\n", 7), err
    assert (tmp_path / "home" / "here").exists()
    assert not (tmp_path / "policy.json").exists()


def test_command_killed_by_signal_exits_as_in_shell(tmp_path: Path, host: Any) -> None:
    process = launch(tmp_path, host, SHELL, "-c", "kill -SEGV $$")

    _, err = process.communicate(timeout=120)

    assert process.returncode == 128 + signal.SIGSEGV, err


def test_unkillable_process_does_not_delay_end_for_ever(tmp_path: Path, host: Any) -> None:
    # Such as one that waits for a file server: a test cannot start one.
    code = "from sandbox.inside import exec_main as m; m.DYING_S, m.end_session = 1, lambda _: 0; m.main()"

    process = launch(tmp_path, host, SHELL, "-c", "exit 7", code=code)

    assert "still runs 1 seconds after SIGKILL" in process.communicate(timeout=120)[1]


def test_command_cannot_write_beside_its_home(tmp_path: Path, host: Any) -> None:
    process = launch(tmp_path, host, SHELL, "-c", f"echo x > {tmp_path}/beside || echo denied")

    assert process.communicate(timeout=120)[0] == "denied\n"
    assert not (tmp_path / "beside").exists()


def test_unrunnable_command_is_named(tmp_path: Path, host: Any) -> None:
    process = launch(tmp_path, host, "/usr/bin/there-is-none")

    _, err = process.communicate(timeout=120)

    assert (process.returncode, err) == (
        127,
        "runner: /usr/bin/there-is-none cannot be run: No such file or directory\n",
    )


def test_unconfined_command_is_not_run(tmp_path: Path, host: Any) -> None:
    process = launch(tmp_path, host, SHELL, "-c", "echo ran", home=tmp_path / "not-there")

    out, err = process.communicate(timeout=120)

    assert (process.returncode, out) == (125, "")
    assert "could not be confined" in err


@pytest.mark.parametrize("by", ["its host's death", "a signal"])
def test_command_ends_with_all_its_processes(by: str, tmp_path: Path, host: Any) -> None:
    process = launch(tmp_path, host, SHELL, "-c", "sleep 600 & echo $$ $!; wait")
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert all(alive(pid) for pid in pids)

    if by == "a signal":
        process.send_signal(signal.SIGTERM)
    else:
        host.kill()
        host.wait()

    assert process.wait(timeout=120) != 0
    assert all(gone(pid) for pid in pids)
    process.communicate()
