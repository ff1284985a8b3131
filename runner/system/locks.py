"""Locks on open files and folders, by flock: visible to every process, released when their holder ends.

A lock belongs to the open file description, so a child between fork and exec may hold it for a moment. It is
therefore released explicitly before the file is closed. If a file may be removed by the holder of its lock, a
waiter must check afterwards that it is still linked: `is_linked`.

Source: flock(2).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held", "is_linked", "let_go", "locked", "try_lock", "wait_for"]


def wait_for(fd: int, *, shared: bool = False) -> None:
    """Lock an open file, exclusively or shared; block while another lock conflicts."""
    fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file without blocking; return whether that succeeded.

    An existing lock of the other kind is released in either case.

    Raises:
        OSError: Its file system has no locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def let_go(fd: int) -> None:
    """Unlock an open file, and close it."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@contextmanager
def locked(fd: int) -> Iterator[None]:
    """Lock an open file exclusively until the block ends; it stays open."""
    wait_for(fd)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def held(fd: int) -> Iterator[int]:
    """Lock an open file exclusively until the block ends, then close it."""
    try:
        wait_for(fd)
        yield fd
    finally:
        let_go(fd)


def is_linked(fd: int) -> bool:
    """Return whether an open file still has a name: a previous holder of its lock may have removed it."""
    return os.fstat(fd).st_nlink > 0
