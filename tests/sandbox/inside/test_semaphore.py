"""Semaphores without a name, and shared memory in a home, as `multiprocessing` uses them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.inside.semaphore import SemLock

RECURSIVE, COUNTING = 0, 1
FORKED = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use our locks in `multiprocessing`, as a worker does."""
    monkeypatch.setattr(
        "multiprocessing.synchronize._multiprocessing", SimpleNamespace(SemLock=SemLock, sem_unlink=os.unlink)
    )


def counting(value: int, most: int = SemLock.SEM_VALUE_MAX) -> SemLock:
    return SemLock(COUNTING, value, most, "/unused", True)


def in_a_child(act: Callable[[], bool]) -> int:
    """Fork; return the exit status of a child that exits with 0 if `act` is true."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if act() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_there_are_as_many_tokens_as_were_put_in() -> None:
    semaphore = FORKED.Semaphore(2)

    taken = [semaphore.acquire(block=False) for _ in range(3)]

    assert taken == [True, True, False]
    assert semaphore.get_value() == 0
    semaphore.release()
    assert semaphore.get_value() == 1


def test_awaited_token_arrives_from_another_process() -> None:
    semaphore = counting(0)

    def put() -> bool:
        semaphore.release()
        return True

    assert not semaphore.acquire(timeout=0.001)
    assert in_a_child(put) == 0
    assert semaphore.acquire(timeout=180)


def test_a_lock_excludes_other_processes_until_it_is_released() -> None:
    lock = counting(1, 1)

    with lock:
        assert in_a_child(lambda: lock.acquire(block=False)) == 1
    assert in_a_child(lambda: lock.acquire(block=False)) == 0


def test_token_of_killed_process_is_lost_and_blocks_nobody() -> None:
    semaphore = counting(2)

    def die() -> bool:
        semaphore.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    assert in_a_child(die) == -signal.SIGKILL
    assert [semaphore.acquire(block=False) for _ in range(2)] == [True, False]


def test_a_release_too_many_is_refused() -> None:
    bounded = counting(1, 1)

    with pytest.raises(ValueError, match="released too many times"):
        bounded.release()


def test_recursive_lock_is_reacquired_by_its_thread_only() -> None:
    lock = SemLock(RECURSIVE, 1, 1, "/unused", True)
    others: list[bool] = []

    with lock, lock:
        thread = threading.Thread(target=lambda: others.append(lock.acquire(block=False)))
        thread.start()
        thread.join()

    assert others == [False]
    with pytest.raises(AssertionError, match="not owned by thread"):
        lock.release()
    assert in_a_child(lambda: lock.acquire(block=False)) == 0


def test_child_holds_no_lock_of_its_parent() -> None:
    lock = FORKED.RLock()

    def takes() -> None:
        sys.exit(0 if lock.acquire(block=False) else 7)

    with lock:
        while_held = FORKED.Process(target=takes)
        while_held.start()
        while_held.join()
    afterwards = FORKED.Process(target=takes)
    afterwards.start()
    afterwards.join()

    assert (while_held.exitcode, afterwards.exitcode) == (7, 0)


def test_spawned_processes_are_refused_with_advice() -> None:
    with pytest.raises(OSError, match=r'get_context\("fork"\)'):
        SemLock(COUNTING, 1, 1, "/name", False)


# In an interpreter of its own: what is installed stays.
_PROGRAM = """
import multiprocessing, os, sys
from multiprocessing import shared_memory
from pathlib import Path
from sandbox.inside.sharing import install

home = Path(sys.argv[1])
install(home if home.name != "none" else None)
before = set(os.listdir("/dev/shm"))
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
assert multiprocessing.Array("i", 3)[:] == [0, 0, 0]
for name in ("../x", "a/b", "/", ".."):
    try:
        shared_memory.SharedMemory(name, create=True, size=10)
    except OSError as error:
        print(type(error).__name__)
memory = shared_memory.SharedMemory("mine", create=True, size=10)
again = shared_memory.SharedMemory("mine")
again.buf[0] = 7
print(memory.buf[0], sorted(os.listdir(home / ".shm")))
again.close()
memory.close()
memory.unlink()
print(os.listdir(home / ".shm"), set(os.listdir("/dev/shm")) - before)
"""


def run(home: Path) -> "subprocess.CompletedProcess[str]":
    root = str(Path(__file__).parents[3])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM, home],
        env={"PYTHONPATH": root, "PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_shared_memory_lies_in_the_home_and_nowhere_else(tmp_path: Path) -> None:
    ended = run(tmp_path)

    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["OSError"] * 4 + ["7 ['mine']", "[] set()"]
    assert multiprocessing.get_start_method(allow_none=True) in (None, "fork")


def test_pools_without_home_have_no_shared_memory(tmp_path: Path) -> None:
    ended = run(tmp_path / "none")

    assert "this call may not write files, nor shared memory" in ended.stderr
    assert "AssertionError" not in ended.stderr
