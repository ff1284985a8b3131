"""An unnamed semaphore for forked processes, in place of the one of `_multiprocessing`.

The C library keeps named semaphores in /dev/shm, which a worker may not write, since all users share it. So
the tokens are in an eventfd, which children inherit and the kernel counts. The count is also kept beside it,
since an eventfd cannot be queried; it is used only to refuse a surplus release, and by `get_value`.

Source: eventfd(2), sem_overview(7); CPython, Modules/_multiprocessing/semaphore.c.
"""

import errno
import mmap
import os
import select
import struct
import threading
import time
from types import TracebackType

__all__ = ["SemLock"]

_RECURSIVE = 0
_NOTE = struct.Struct("q")
# Who is killed while writing a note leaves it locked; a note that is wrong is better than a wait for ever.
_NOTE_S = 1.0
_FORK_ONLY = (
    'spawned processes cannot share locks here, only forked ones can: use multiprocessing.get_context("fork")'
)


class _Tokens:
    """Tokens to take and to put back, by all processes that inherited them."""

    def __init__(self, count: int) -> None:
        self.fd = os.eventfd(count, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def take(self, timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while True:
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                poll.poll(None if left_s is None else max(1, round(left_s * 1000)))
            else:
                return True

    def put(self) -> None:
        os.eventfd_write(self.fd, 1)


class SemLock:
    """A semaphore or recursive lock with the interface of `_multiprocessing.SemLock`."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:  # noqa: FBT001 - as the original
        if not unlink:
            raise OSError(errno.ENOTSUP, _FORK_ONLY)
        self.kind = kind
        self.maxvalue = maxvalue
        self.name = None
        self._tokens = _Tokens(value)
        self._noting = _Tokens(1)
        self._note = mmap.mmap(-1, _NOTE.size)
        _NOTE.pack_into(self._note, 0, value)
        self._held = 0
        self._holder = 0

    @property
    def handle(self) -> int:
        """Return the descriptor of the tokens."""
        return self._tokens.fd

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - as the original
        """Take a token; return whether there was one in time."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        if not self._tokens.take((None if timeout is None else max(0.0, timeout)) if block else 0.0):
            return False
        self._add(-1)
        self._held += 1
        self._holder = threading.get_ident()
        return True

    def release(self) -> None:
        """Put a token back.

        Raises:
            ValueError: There are as many as there may be.
            AssertionError: Another thread holds the recursive lock.
        """
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._held -= 1
        self._add(1)
        self._tokens.put()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _add(self, difference: int) -> None:
        locked = self._noting.take(_NOTE_S)
        _NOTE.pack_into(self._note, 0, self._get_value() + difference)
        if locked:
            self._noting.put()

    # What follows is private by name only: `multiprocessing.synchronize` calls it.

    def _get_value(self) -> int:
        value: int = _NOTE.unpack_from(self._note)[0]
        return max(0, value)

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._holder == threading.get_ident()

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0
