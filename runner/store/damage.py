"""Stored bytes that are not what was put: how that is told, and which contents need no second look just now.

A file that is read as a whole is digested on its way, and its last piece is given out only if the digest is
the one of its record. Where the kernel shares or copies blocks by itself nothing passes by, so the file is
read for it, but not again and again: what this process has verified within ten minutes, and nobody has
written to since, is taken for good. `runner doctor --verify` reads everything.

Source: FIPS 180-4; stat(2), on when the change time changes.
"""

import logging
import os
import threading
import time
from collections import OrderedDict

from runner.errors import CallError, Code
from runner.store.protocol import Record

__all__ = ["NOT_WHAT_WAS_PUT", "Verified", "damaged"]

NOT_WHAT_WAS_PUT = "its bytes are not the ones that were put"

_KEEP_S = 600.0
_REMEMBERED = 4096

_log = logging.getLogger(__name__)


def damaged(record: Record, why: str) -> CallError:
    """Return the error of an artifact whose bytes cannot be had, and log it for the operator.

    Args:
        record: The artifact.
        why: What is wrong, as a clause that begins with `its`.
    """
    facts = {"artifact": record.id, "user": record.scope.user_id, "reason": why}
    _log.error("stored file damaged", extra=facts)
    message = f"the file {record.shown!r} is listed but {why}; remove it and put it again"
    details = {"name": record.name, "id": record.id, "reason": why}
    return CallError(Code.E_STORE, message, details=details, retryable=False)


class Verified:
    """Files that were found whole not long ago. May be used from any thread.

    Args:
        keep_s: For how long they are taken for good, in seconds.
    """

    def __init__(self, keep_s: float = _KEEP_S) -> None:
        self._keep_s = keep_s
        self._until: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, fd: int, sha256: str) -> bool:
        """Return whether an open file, unchanged since it was last read, had this digest then."""
        with self._lock:
            return self._until.get(_mark(fd, sha256), 0.0) > time.monotonic()

    def add(self, fd: int, sha256: str) -> None:
        """Note that an open file has this digest."""
        with self._lock:
            self._until[_mark(fd, sha256)] = time.monotonic() + self._keep_s
            while len(self._until) > _REMEMBERED:
                self._until.popitem(last=False)


def _mark(fd: int, sha256: str) -> tuple[object, ...]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, sha256
