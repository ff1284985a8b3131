"""An index that cannot be opened where it is, read from a copy in memory.

SQLite needs to write even to read: where the disk is read-only, or full to the last byte, an index with a
write-ahead log is not opened. What it says is there all the same, in the two files.

Source: sqlite.org, "Write-Ahead Logging", sections 5 and 8.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["copied"]

_MEMORY = "/dev/shm"  # noqa: S108 - the copy has a folder of its own there
_ATTEMPTS = 8


@contextlib.contextmanager
def copied(index: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of an index as it is now, to be read.

    Raises:
        OSError: There is no index, or no memory for a copy, or it changes all the time.
        sqlite3.Error: The copy cannot be opened either.
    """
    where = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="toolcell-index-", dir=where) as folder:
        copy = Path(folder) / index.name
        _copy(index, copy)
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            yield connection


def _copy(index: Path, copy: Path) -> None:
    """Copy both files as they were at one moment: they count only if nobody wrote meanwhile."""
    for _attempt in range(_ATTEMPTS):
        before = _marks(index)
        for path in (index, _log_of(index)):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path, copy.with_name(path.name))
        if _marks(index) == before:
            return
        _log_of(copy).unlink(missing_ok=True)
    raise OSError(f"the index changed {_ATTEMPTS} times while it was copied")


def _marks(index: Path) -> list[tuple[int, int, int] | None]:
    return [_mark(index), _mark(_log_of(index))]


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _log_of(index: Path) -> Path:
    return index.with_name(f"{index.name}-wal")
