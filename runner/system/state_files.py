"""Files of the state folder: read with care, written whole, set apart where they are not what they should be.

What lies there belongs to the runner alone, but disks fail and people tidy up. So nothing there is followed
or waited for, a name leads to all of a file or to none of it, and what cannot be used is neither replaced
nor removed: it is renamed beside its place, and the log has an error that names both.

Source: open(2), O_NOFOLLOW and O_NONBLOCK; rename(2); fsync(2).
"""

import contextlib
import errno
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.system import locks

__all__ = [
    "APART",
    "Damaged",
    "apart_in",
    "holding",
    "make_folder",
    "open_lock",
    "open_regular",
    "read_whole",
    "set_apart",
    "sync_folder",
    "write_whole",
]

APART = ".damaged-"
"""Infix of a quarantined file's name, between its name and the time."""

_log = logging.getLogger(__name__)

# All that is read at once is small; what is larger was not written by us.
_MAX_BYTES = 64 * 1024 * 1024
# A link, a folder, a pipe or socket that nobody serves, a device: whatever it is, it is not a file of ours.
_NOT_OURS = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
_CLOSED_TO_OTHERS = 0o600


class Damaged(ValueError):
    """Error of a state file with foreign content; the message has the cause, as a clause."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file without following a link, or waiting for the other end of a pipe.

    Raises:
        Damaged: Something else than a file has its name.
        FileNotFoundError: Nothing has.
        OSError: It cannot be opened.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _CLOSED_TO_OTHERS)
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise Damaged("it is not a file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Damaged("it is not a file")
    return fd


def read_whole(path: Path) -> bytes:
    """Return all of a small file.

    Raises:
        Damaged: It is not a file, is larger than any of ours, or the disk has lost it.
        FileNotFoundError: There is none.
        OSError: It cannot be read.
    """
    try:
        with open(open_regular(path), "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        if error.errno == errno.EIO:
            raise Damaged("its disk cannot read it") from error
        raise
    if len(content) > _MAX_BYTES:
        raise Damaged("it is far larger than what was written")
    return content


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole and on disk or not at all, in place of the one that has its name.

    Raises:
        OSError: It cannot be written; what was there before is as it was.
    """
    new = path.with_name(f".{path.name}-{secrets.token_hex(8)}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _CLOSED_TO_OTHERS)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def set_apart(path: Path, why: str) -> None:
    """Give what cannot be used a name beside its place, and tell the operator. Its content stays as it is.

    The caller holds a lock that keeps others from doing so at once: they would set apart its successor.

    Args:
        path: What it is.
        why: What is wrong with it, as a clause.

    Raises:
        OSError: It cannot be renamed, since the folder takes nothing or something is mounted there.
    """
    apart = path.with_name(f"{path.name}{APART}{time.time_ns()}")
    path.rename(apart)
    _log.error(
        "state file set aside",
        extra={"file": str(path), "reason": why, "kept_as": apart.name},
    )


def apart_in(state: Path) -> list[Path]:
    """Return the quarantined files of a state folder."""
    return sorted(path for path in state.rglob(f"*{APART}*") if path.name.rpartition(APART)[2].isdecimal())


def make_folder(state: Path, *names: str) -> None:
    """Make the state folder, or a folder below it; what else has a name there is set apart.

    Anything else at the path of the state folder, and links, are the operator's: they stay as they are.

    Args:
        state: The state folder.
        names: What leads from there to the folder, if it is another one.

    Raises:
        OSError: It cannot be made.
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = state
    for name in names:
        folder /= name
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            _make_way(folder)
            folder.mkdir(mode=0o700, exist_ok=True)


def _make_way(folder: Path) -> None:
    """Set apart an entry that has the name of a folder but is not one."""
    if folder.is_symlink():
        # The disk that it leads to may come back.
        raise FileNotFoundError(errno.ENOENT, f"{folder.name} is a link that leads to no folder")
    with holding(folder.parent):
        # Another process was faster and has done it.
        if folder.exists() and not folder.is_dir():
            set_apart(folder, "it is not a folder")


def open_lock(path: Path) -> int:
    """Open a file that is only there to be locked, making it; what else has its name is set apart.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT
    with contextlib.suppress(Damaged):
        return open_regular(path, flags)
    with holding(path.parent):
        # Another process was faster and has set it apart.
        with contextlib.suppress(Damaged):
            return open_regular(path, flags)
        set_apart(path, "it is not a file")
        return open_regular(path, flags)


@contextmanager
def holding(folder: Path) -> Iterator[int]:
    """Hold a folder, so that one process at a time changes what has which name there.

    Raises:
        OSError: It cannot be opened.
    """
    with locks.held(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        yield fd
