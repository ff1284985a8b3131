"""Room that a local store keeps back on its disk, so that reading and removing work when the disk is full.

SQLite needs room to read (its shared memory is a file) and to remove a row (its log grows). So some small
files are kept that hold nothing. Where there is no room an operation that may not fail removes one of them,
which frees blocks and an inode alike, and is tried again. They are made anew when there is plenty of room.

One at a time: whoever fills the disk takes what is freed, and has to take it as often as there are files.

Source: posix_fallocate(3), statvfs(3); sqlite.org, "Write-Ahead Logging", section 8.
"""

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from runner.errors import CallError
from runner.store.disk import free_bytes, try_to_write

__all__ = ["NO_ROOM", "Reserve", "is_for_want_of_room", "is_unwritten"]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel says where a disk or a quota is used up."""

_FILES = 8
_MIB = 1024 * 1024
# Of a disk, at most this part; of a large one, eight MiB; and of the smallest, what an index needs.
_PART = 64
_LEAST_BYTES, _MOST_BYTES = 128 * 1024, _MIB
_FOLDER = "reserve"
# What SQLite says where it could not write. It may mean other things, so the disk is asked.
_UNWRITTEN = frozenset(
    {
        "SQLITE_FULL",
        "SQLITE_CANTOPEN",
        "SQLITE_IOERR_WRITE",
        "SQLITE_IOERR_FSYNC",
        "SQLITE_IOERR_SHMOPEN",
        "SQLITE_IOERR_SHMSIZE",
        "SQLITE_IOERR_SHMMAP",
    }
)

_NO_WRITING = NO_ROOM | {errno.EROFS, errno.EIO}

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reserve:
    """The room that a store keeps back. Any number of processes may have the same.

    Attributes:
        root: The folder of the store.
    """

    root: Path

    def take(self) -> None:
        """Make what is missing of the reserve, if there is plenty of room."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            size = self._file_bytes()
            missing = [path for path in self._paths() if _size(path) < size]
            # Room for all of it twice, so that it is not given up and taken again and again.
            if not missing or free_bytes(self.root) < 2 * _FILES * size:
                return
            (self.root / _FOLDER).mkdir(mode=0o700, exist_ok=True)
            for path in missing:
                _allocate(path, size)
        except OSError as error:
            _log.warning("no room kept back for reading and removing", extra={"reason": error.strerror})

    def give(self) -> bool:
        """Let some of it go; say whether there was any."""
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                left = sum(_size(each) > 0 for each in self._paths())
                _log.warning("disk of the store is full", extra={"reserve_left": f"{left} of {_FILES}"})
                return True
        return False

    def spend(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what must work on a full disk too: all of it or nothing, so that it can be done again.

        Raises:
            CallError: As `act` does; for want of room only where the reserve is used up.
            OSError: Likewise.
            sqlite3.Error: Likewise.
        """
        while True:
            try:
                return act(*args, **kwargs)
            except (CallError, OSError, sqlite3.Error) as error:
                said = error.__cause__ if isinstance(error, CallError) else error
                if not is_for_want_of_room(said, self.root) or not self.give():
                    raise

    def _file_bytes(self) -> int:
        found = os.statvfs(self.root)
        share = found.f_blocks * found.f_frsize // _PART // _FILES
        return min(max(share, _LEAST_BYTES), _MOST_BYTES)

    def _paths(self) -> list[Path]:
        return [self.root / _FOLDER / str(number) for number in range(_FILES)]


def is_unwritten(error: BaseException | None) -> bool:
    """Say whether something failed because nothing could be written, for whatever reason."""
    if isinstance(error, OSError):
        return error.errno in _NO_WRITING
    said = str(getattr(error, "sqlite_errorname", ""))
    return said in _UNWRITTEN or said.startswith("SQLITE_READONLY")


def is_for_want_of_room(error: BaseException | None, folder: Path) -> bool:
    """Say whether something failed because the disk, or a quota, is used up.

    Args:
        error: What was raised.
        folder: A folder of that disk.
    """
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        # Whatever wanted more room than there is has taken its own files away by now.
        return True
    if not is_unwritten(error):
        return False
    try:
        try_to_write(folder)
    except OSError as tried:
        return tried.errno in NO_ROOM
    return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _allocate(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
