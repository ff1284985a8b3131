"""Locks on open files and folders, by flock: seen by every process, and gone with the one that holds them.

A lock belongs to the open file, so a child between fork and exec may hold a copy of it for a moment. It is
therefore released explicitly, and not only closed. A waiter for the lock of a file that is removed in the
end must ask whether it still has its name: `is_linked`.

Source: flock(2).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held", "is_linked", "let_go", "locked", "try_lock", "wait_for"]


def wait_for(fd: int, *, shared: bool = False) -> None:
    """Lock an open file, alone or with others who share it; waits as long as somebody keeps it from that."""
    fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file if that can be done at once; say whether it was.

    A lock of the other kind that it had is given up in either case.

    Raises:
        OSError: Its file system has no locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def let_go(fd: int) -> None:
    """Lock an open file no longer, and close it."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@contextmanager
def locked(fd: int) -> Iterator[None]:
    """Lock an open file alone until the block ends; it stays open."""
    wait_for(fd)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def held(fd: int) -> Iterator[int]:
    """Lock an open file alone until the block ends, and close it then."""
    try:
        wait_for(fd)
        yield fd
    finally:
        let_go(fd)


def is_linked(fd: int) -> bool:
    """Return whether an open file has a name yet: who had its lock before may have removed it."""
    return os.fstat(fd).st_nlink > 0
