"""The watch: what it makes of what it sees, and when it looks."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sandbox.host.call_watch import FIRST_LOOK_S, CallWatch, Look, LookPace, behind_death, exceeded, overfull
from sandbox.host.home_usage import HomeDisk, HomeUsage, measure
from sandbox.host.usage import Process, read_process
from sandbox.outcome import Reached
from sandbox.policy import Limits

LIMITS = Limits(
    call_processes=10, call_memory_bytes=1000, home_bytes=2000, home_entries=30, cpu_s=7, file_bytes=50
)
MODEST = Look(tasks=10, memory_bytes=1000, cpu_s=9.0, all_cpu_s=100.0)


def look(**changes: object) -> Look:
    values = {name: getattr(MODEST, name) for name in ("tasks", "memory_bytes", "cpu_s", "all_cpu_s")}
    return Look(**{**values, **changes})


@pytest.mark.parametrize(
    ("seen", "reached"),
    [
        (MODEST, None),
        # The kernel ends a process a second after its limit; this is for who has raised its own.
        (look(cpu_s=9.1), Reached(limit="cpu_s", value=7, used=9)),
        (look(tasks=11), Reached(limit="call_processes", value=10, used=11)),
        (look(memory_bytes=1001), Reached(limit="call_memory_bytes", value=1000, used=1001)),
    ],
)
def test_a_limit_is_exceeded_by_one_more_and_not_by_reaching_it(seen: Look, reached: Reached | None) -> None:
    assert exceeded(seen, LIMITS) == reached


@pytest.mark.parametrize(
    ("usage", "lost_bytes", "reached"),
    [
        (HomeUsage(2000, 30), 0, None),
        (HomeUsage(2001, 1), 0, Reached(limit="home_bytes", value=2000, used=2001)),
        (HomeUsage(1, 31), 0, Reached(limit="home_entries", value=30, used=31)),
        (HomeUsage(1, 1), 2001, None),
        (HomeUsage(1, 1, hides=True), 2000, None),
        (HomeUsage(1, 1, hides=True), 2001, Reached(limit="home_bytes", value=2000, used=2001)),
    ],
)
def test_lost_disk_space_counts_only_for_home_hiding_files(
    usage: HomeUsage, lost_bytes: int, reached: Reached | None
) -> None:
    assert overfull(usage, LIMITS, lost_bytes=lost_bytes) == reached


@pytest.mark.parametrize(
    ("status", "last", "oom_killed", "limit"),
    [
        ("signal SIGXCPU", None, False, "cpu_s"),
        ("signal SIGKILL", look(cpu_s=7.9), False, "cpu_s"),
        ("signal SIGKILL", look(cpu_s=6.9), False, None),
        ("signal SIGKILL", None, False, None),
        ("signal SIGKILL", None, True, "total_memory_bytes"),
        ("signal SIGSEGV", look(cpu_s=7.9), True, None),
        ("signal SIGXFSZ", None, False, "file_bytes"),
        ("exit status 1", None, True, None),
        (None, None, True, None),
    ],
)
def test_death_is_attributed_to_a_limit_only_with_its_signs(
    status: str | None, last: Look | None, oom_killed: bool, limit: str | None
) -> None:
    reached = behind_death(status, last, LIMITS, oom_killed=oom_killed)

    assert (None if reached is None else reached.limit) == limit


def test_working_call_is_sampled_every_50_ms() -> None:
    pace = LookPace()

    delays = [
        pace.next(look(all_cpu_s=float(second)), cpu_s=0.0005, elapsed_s=0.0005) for second in range(1, 20)
    ]

    assert delays == [FIRST_LOOK_S] * 19


def test_idle_call_is_sampled_less_often_until_it_works_again() -> None:
    pace = LookPace()

    delays = [pace.next(MODEST, cpu_s=0.0005, elapsed_s=0.0005) for _ in range(5)]
    awake = pace.next(look(all_cpu_s=101.0), cpu_s=0.0005, elapsed_s=0.0005)

    assert delays == [0.05, 0.1, 0.2, 0.2, 0.2]
    assert awake == 0.05


def test_looking_takes_a_small_share_of_processor_and_time() -> None:
    assert LookPace().next(MODEST, cpu_s=0.5, elapsed_s=0.5) == 10.0
    assert LookPace().next(MODEST, cpu_s=0.01, elapsed_s=0.5) == 2.0


@pytest.mark.anyio
@pytest.mark.kernel
async def test_processes_are_sampled_despite_slow_homes_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = threading.Event()
    loop = asyncio.get_running_loop()
    own = [loop.run_in_executor(None, busy.wait) for _ in range(64)]

    def slow(*args: Any, **more: Any) -> HomeUsage:
        busy.wait()
        return measure(*args, **more)

    monkeypatch.setattr("sandbox.host.call_watch.measure", slow)
    folder = os.open(tmp_path, os.O_PATH)
    command = [sys.executable, "-c", "import os, sys; [os.fork() for _ in range(2)]; sys.stdin.read()"]

    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        limits = Limits(call_processes=3)
        watches = [
            CallWatch(worker=process.pid, origin=os.getpid(), disk=HomeDisk(folder), limits=limits)
            for _ in range(16)
        ]
        looking = [asyncio.create_task(watch.run()) for watch in watches]
        found, _ = await asyncio.wait({asyncio.create_task(_last(watches[-1], limits))}, timeout=120)
        busy.set()
        reached = await asyncio.wait_for(asyncio.gather(*looking), 120)
        process.communicate()

    await asyncio.gather(*own)
    os.close(folder)
    assert found
    assert reached == [Reached(limit="call_processes", value=3, used=4)] * 16


@pytest.mark.anyio
@pytest.mark.kernel
async def test_a_call_is_watched_after_an_error_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [OSError(errno.EMFILE, "Too many open files")]

    def failing(pid: int) -> Process | None:
        if errors:
            raise errors.pop()
        return read_process(pid)

    monkeypatch.setattr("sandbox.host.call_watch.read_process", failing)
    watch = CallWatch(worker=os.getpid(), origin=os.getppid(), disk=None, limits=Limits(call_memory_bytes=1))

    assert (await asyncio.wait_for(watch.run(), 60)).limit == "call_memory_bytes"
    assert not errors


async def _last(watch: CallWatch, limits: Limits) -> None:
    while watch.last is None or watch.last.tasks <= limits.call_processes:
        await asyncio.sleep(0.01)
