"""Locks on open files: who keeps whom away, and what is left of one when it is given up."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.system import locks

_HOLDER = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.touch()
    return file


@pytest.fixture
def held_elsewhere(path: Path) -> "Iterator[subprocess.Popen[str]]":
    """Another process that has locked the file, until its standard input ends."""
    command = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_lock_of_other_process_blocks_until_it_exits(
    path: Path, held_elsewhere: "subprocess.Popen[str]"
) -> None:
    fd = os.open(path, os.O_RDONLY)

    assert not locks.try_lock(fd)
    assert not locks.try_lock(fd, shared=True)
    held_elsewhere.kill()
    held_elsewhere.wait()
    assert locks.try_lock(fd)
    locks.let_go(fd)


def test_shared_lock_is_shared_and_blocks_exclusive_locks(path: Path) -> None:
    one, other = (os.open(path, os.O_RDONLY) for _ in range(2))
    locks.wait_for(one, shared=True)

    assert locks.try_lock(other, shared=True)
    assert not locks.try_lock(other)
    locks.let_go(one)
    assert locks.try_lock(other)
    locks.let_go(other)


def test_lock_is_released_although_child_holds_the_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.set_inheritable(fd, True)
    with locks.held(fd):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        again = os.open(path, os.O_RDONLY)
        assert locks.try_lock(again)
        locks.let_go(again)
    finally:
        child.communicate(b"\n")


def test_waiter_for_a_removed_file_detects_it(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)

    assert locks.is_linked(fd)
    path.unlink()
    assert not locks.is_linked(fd)
    os.close(fd)
