"""An unnamed semaphore for forked processes, instead of the one of `_multiprocessing`.

The C library keeps named semaphores in /dev/shm, which a worker may not write, since all users share it. An
unnamed semaphore is in memory shared with children.

Source: sem_init(3), sem_overview(7); CPython, Modules/_multiprocessing/semaphore.c.
"""

import ctypes
import errno
import mmap
import os
import struct
import threading
import time
from types import TracebackType

__all__ = ["SemLock"]

_RECURSIVE = 0
_FORK_ONLY = (
    'spawned processes cannot share locks here, only forked ones can: use multiprocessing.get_context("fork")'
)
_libc = ctypes.CDLL(None, use_errno=True)


def _succeeded(answer: int) -> bool:
    """Return whether a call took a token; False at a timeout."""
    number = ctypes.get_errno()
    if answer and number not in (errno.EAGAIN, errno.ETIMEDOUT):
        raise OSError(number, os.strerror(number))
    return not answer


class SemLock:
    """A semaphore or recursive lock with the interface of `_multiprocessing.SemLock`."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:  # noqa: FBT001 - as the original
        if not unlink:
            raise OSError(errno.ENOTSUP, _FORK_ONLY)
        self.kind = kind
        self.maxvalue = maxvalue
        self.name = None
        self._semaphore = (ctypes.c_char * mmap.PAGESIZE).from_buffer(mmap.mmap(-1, mmap.PAGESIZE))
        _succeeded(_libc.sem_init(self._semaphore, 1, value))
        self._held = 0
        self._holder = 0

    @property
    def handle(self) -> int:
        """Return the address of the semaphore."""
        return ctypes.addressof(self._semaphore)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - as the original
        """Take a token; return False at a timeout."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        if not self._take(None if timeout is None else max(0.0, timeout), block=block):
            return False
        self._held += 1
        self._holder = threading.get_ident()
        return True

    def _take(self, timeout_s: float | None, *, block: bool) -> bool:
        seconds, rest = divmod(time.time() + (timeout_s or 0), 1)
        deadline = struct.pack("@2l", int(seconds), int(rest * 1_000_000_000))
        while True:
            try:
                if not block:
                    return _succeeded(_libc.sem_trywait(self._semaphore))
                if timeout_s is None:
                    return _succeeded(_libc.sem_wait(self._semaphore))
                return _succeeded(_libc.sem_timedwait(self._semaphore, deadline))
            except InterruptedError:
                # Interrupted by a signal whose handler did not raise.
                continue

    def release(self) -> None:
        """Put a token back.

        Raises:
            ValueError: The semaphore has its maximum value.
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
        _succeeded(_libc.sem_post(self._semaphore))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    # What follows is private by name only: `multiprocessing.synchronize` calls it.

    def _get_value(self) -> int:
        value = ctypes.c_int()
        _succeeded(_libc.sem_getvalue(self._semaphore, ctypes.byref(value)))
        return value.value

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._holder == threading.get_ident()

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0
