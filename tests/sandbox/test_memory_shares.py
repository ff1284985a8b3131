"""Memory of processes by owner: what is shared counts once, and looking takes a bounded time."""

import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import until

from sandbox.host.memory_shares import MemoryShares
from sandbox.host.usage import read_process, share_of

MIB = 1024 * 1024
SHARED, OWN = 64 * MIB, 16 * MIB


@contextmanager
def family(sizes: list[int]) -> Iterator[list[int]]:
    """Run children that have `SHARED` in common with us, unchanged, and each so many bytes of its own.

    Each takes as much again at SIGUSR1.
    """
    held = bytearray(os.urandom(MIB)) * (SHARED // MIB)
    pids = []
    try:
        for size in sizes:
            ready, signal_end = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    _serve(size, signal_end)
                finally:
                    os._exit(1)
            pids.append(pid)
            os.close(signal_end)
            assert os.read(ready, 1) == b"r"
            os.close(ready)
        yield pids
    finally:
        del held
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(size: int, signal_end: int) -> None:
    own = [_taken(size)]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.write(signal_end, b"r")
    while True:
        signal.sigwait({signal.SIGUSR1})
        own.append(_taken(size))


def _taken(size: int) -> mmap.mmap:
    """Take memory that is new: what is allocated may be what this process has had and given up before."""
    taken = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, size, mmap.PAGESIZE):
        taken[start] = 1
    return taken


def anonymous(pid: int) -> int:
    process = read_process(pid)
    assert process is not None
    return process.private_bytes


def test_memory_shared_by_processes_counts_once() -> None:
    with family([OWN] * 8) as pids:
        found = MemoryShares(look_s=60).by_owner([("ann", pid) for pid in pids[:4]] + [("bob", pids[4])])

        # The way in which it must not be counted, as a control.
        each_for_itself = sum(map(anonymous, pids[:4]))
    assert each_for_itself > 4 * (SHARED + OWN)
    assert 4 * OWN < found["ann"] < each_for_itself / 2
    assert OWN < found["bob"] < each_for_itself / 8


def test_changed_process_is_measured_again_and_ended_one_dropped() -> None:
    shares = MemoryShares(look_s=60)
    with family([OWN]) as [pid]:
        before = shares.by_owner([("ann", pid)])["ann"]
        least = anonymous(pid) + OWN
        os.kill(pid, signal.SIGUSR1)
        assert until(lambda: anonymous(pid) >= least)

        after = shares.by_owner([("ann", pid)])["ann"]

    assert after > before + OWN / 2
    assert shares.by_owner([("ann", pid)]) == {}


def test_unmeasured_process_counts_as_growth_over_its_parent() -> None:
    with family([OWN] * 4) as pids:
        roots = [(str(pid), pid) for pid in pids]
        found = MemoryShares(look_s=0).by_owner(roots)

    assert set(found) == {owner for owner, _ in roots}
    assert all(0 < size < OWN + SHARED / 2 for size in found.values())


def test_longest_waiting_processes_are_measured_first_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    looked: list[int] = []

    def look(pid: int) -> int:
        looked.append(pid)
        return share_of(pid)

    monkeypatch.setattr("sandbox.host.memory_shares.share_of", look)

    def clock() -> float:
        # Each look at it takes a second.
        now[0] += 1.0
        return now[0]

    shares = MemoryShares(look_s=5.0, clock=clock)
    with family([MIB] * 6) as pids:
        roots = [("ann", pid) for pid in pids]
        shares.by_owner(roots)
        at_first = len(looked)
        for _ in range(4):
            shares.by_owner(roots)

    assert at_first < len(pids)
    assert sorted(looked) == sorted(pids)
