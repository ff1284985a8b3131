"""The soak in short, and that it would find what it looks for."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support import ROOT

from benchmarks.soak import Count, disturbed_or_grown, late_growth
from benchmarks.soak_calls import HONEST, HOSTILE, calls
from benchmarks.soak_traces import Measured, Traces

pytestmark = [pytest.mark.kernel, pytest.mark.needs_root, pytest.mark.release]


@pytest.mark.timeout(1200)
def test_soak_with_hostile_calls_leaves_nothing() -> None:
    assert os.geteuid() == 0, (
        "users get user ids of their own from a server that root starts; run this as root"
    )
    command = [sys.executable, "-m", "benchmarks.soak", "--calls", "300", "--users", "3"]

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)

    assert ended.stdout.endswith("nothing left, nothing disturbed\n"), ended.stdout + ended.stderr
    assert ended.returncode == 0


UID = 1_980_000_000 + os.getpid()


def traces(folder: Path, token: str = "soak-nothing") -> Traces:
    (folder / "homes").mkdir(exist_ok=True)
    # Servers of other tests may live below this process.
    others = frozenset(child.pid for child in psutil.Process().children(recursive=True))
    return Traces(
        forkserver=os.getpid(),
        uids=range(UID, UID + 1),
        folder=folder,
        token=token,
        key=0x60000000 + os.getpid(),
        others=others,
    )


def test_leftover_file_and_home_found(tmp_path: Path) -> None:
    token = f"soak-{tmp_path.name}-{os.getpid()}"
    looked = traces(tmp_path, token)
    before = looked.left()

    (tmp_path / "homes" / "user-1").mkdir()
    Path("/var/tmp", token).touch()
    found = looked.left()
    Path("/var/tmp", token).unlink()

    assert before == []
    assert sorted(line.split()[0] for line in found) == ["file", "home"]


def test_leftover_process_and_file_of_server_uid_found(tmp_path: Path) -> None:
    looked = traces(tmp_path)
    left = Path(f"/var/tmp/soak-file-{UID}")
    left.touch()
    os.chown(left, UID, UID)
    code = f"import os, sys; os.setresuid(*[{UID}] * 3); print('ready', flush=True); sys.stdin.read()"
    # Not below this process: its parent has ended.
    started = f"import os, subprocess, sys; os.fork() or subprocess.Popen([sys.executable, '-c', {code!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", started], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    found = looked.left()
    process.stdin.close()
    process.stdout.close()
    process.wait()
    ending = [each for each in psutil.process_iter(["uids"]) if each.info["uids"].real == UID]
    psutil.wait_procs(ending, timeout=120)
    left.unlink()

    assert sorted(line.split()[0] for line in found) == ["file", "process"]


def test_leftover_system_v_object_found(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    looked = traces(tmp_path)
    made = libc.semget(looked.key, 1, 0o1600)

    found = looked.left()
    libc.semctl(made, 0, 0)

    assert [line[:12] for line in found] == ["System V sem"]
    assert looked.left() == []


QUIET = Measured(uss_mib=100, rss_mib=120, descriptors=50, zygotes=3, workers=3, others=())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, None),
        ({"uss_mib": 104.0}, None),
        ({"uss_mib": 106.0}, "memory"),
        ({"descriptors": 60}, "descriptors"),
        ({"workers": 4}, "children"),
        ({"others": ("sleep",)}, "children"),
    ],
)
def test_grown_host_reported(changes: dict[str, object], word: str | None) -> None:
    values = {name: getattr(QUIET, name) for name in QUIET.__slots__}
    end = Measured(**{**values, **changes})

    problems = disturbed_or_grown(Count(done=20_000), QUIET, end, late=1.02)

    assert [word is not None and word in line for line in problems] == ([True] if word else [])


@pytest.mark.parametrize(("second_half", "is_a_fault"), [([108.0] * 10, False), (range(104, 114), True)])
def test_settled_memory_is_not_a_leak(second_half: Sequence[float], is_a_fault: bool) -> None:
    measured = [replace(QUIET, uss_mib=uss) for uss in [*range(100, 110), *second_half]]
    late = late_growth([(number, float(number), found) for number, found in enumerate(measured)])

    assert bool(disturbed_or_grown(Count(done=20_000), QUIET, measured[-1], late=late)) is is_a_fault


def test_unexpected_honest_answer_is_a_fault() -> None:
    square = next(kind for kind in HONEST if kind.tool == "square")

    right = square.fault({"number": 3}, {"results": {"square": 9, "calls": 1, "found": []}})
    other_call_seen = square.fault({"number": 3}, {"results": {"square": 9, "calls": 2, "found": []}})

    assert right is None
    assert other_call_seen is not None


def test_soak_tenth_of_calls_hostile_covers_every_kind() -> None:
    drawn = calls(1, hostile_share=0.1, token="t", key=1)

    taken = [next(drawn) for _ in range(20_000)]

    assert 1800 < sum(call.hostile for call in taken) < 2200
    assert {call.kind for call in taken} == {*HONEST, *HOSTILE}
