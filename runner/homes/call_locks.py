"""Locks of running calls, one file for each user, for commands that remove a user.

A call, in any server, holds a shared lock of its user. A command that removes a user holds it exclusively, so
no call of that user begins meanwhile. The kernel releases a lock with the process that holds it.

Source: flock(2); `docs/cli.md`, "Users".
"""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from runner.errors import CallError, Code
from runner.system import locks
from runner.system.state_files import make_folder, open_lock

__all__ = ["CallLocks"]

_FOLDER = "calls"
_RETRY_S = 5
_ATTEMPTS = 4
_LOOK_S = 0.001


@dataclass(frozen=True, slots=True)
class CallLocks:
    """The locks of one state folder.

    Attributes:
        state: The state folder.
    """

    state: Path

    @contextmanager
    def calling(self, segment: str) -> Iterator[None]:
        """Hold the lock of a running call. If it cannot be recorded, as on a full disk, continue without.

        Args:
            segment: The name of the user's home.

        Raises:
            CallError: `E_BUSY`: the user is being removed.
        """
        fd = self._shared(segment)
        try:
            yield
        finally:
            if fd is not None:
                locks.let_go(fd)

    def _shared(self, segment: str) -> int | None:
        try:
            fd = self._open(segment)
        except OSError:
            return None
        try:
            # `is_calling` holds it exclusively for an instant.
            for attempt in range(_ATTEMPTS):
                if locks.try_lock(fd, shared=True):
                    return fd
                time.sleep(_LOOK_S * attempt)
        except OSError:
            # The file system has no locks.
            os.close(fd)
            return None
        locks.let_go(fd)
        raise CallError(
            Code.E_BUSY,
            f"What belongs to this user is being removed; try again in {_RETRY_S} seconds",
            details={"retry_after_seconds": _RETRY_S, "suggestion": "Try again, or ask the operator"},
        )

    def is_calling(self, segment: str) -> bool:
        """Return whether a call of a user is in flight."""
        with contextlib.suppress(OSError), self.alone(segment) as alone:
            return not alone
        return False

    @contextmanager
    def alone(self, segment: str) -> Iterator[bool]:
        """Prevent calls of a user while the block runs; yield False if one is in flight.

        Raises:
            OSError: The lock cannot be made.
        """
        fd = self._open(segment)
        try:
            yield locks.try_lock(fd)
        finally:
            locks.let_go(fd)

    def _open(self, segment: str) -> int:
        """Open the file of the lock of a user.

        Raises:
            OSError: It cannot be made.
        """
        path = _path(self.state, segment)
        try:
            return open_lock(path)
        except FileNotFoundError:
            make_folder(self.state, _FOLDER)
            return open_lock(path)


@lru_cache(maxsize=1024)
def _path(state: Path, segment: str) -> Path:
    # Cached: building the path takes longer than opening it.
    return Path(state, _FOLDER, f"{segment}.lock")
