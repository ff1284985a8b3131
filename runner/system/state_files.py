"""Files of the state folder: read carefully, written atomically, quarantined if damaged.

The folder belongs to the runner alone, but disks fail and people tidy up. So links are not followed, pipes
are not waited for, and a name leads to a complete file or to none. An unusable file is neither replaced
nor removed: it is renamed in its folder, and the log has an error with both names.

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

# More than the size of any file that we write and read as a whole.
_MAX_BYTES = 64 * 1024 * 1024
# Errors of a link, a folder, a pipe or socket without a peer, or a device: not a file of ours.
_NOT_OURS = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
_CLOSED_TO_OTHERS = 0o600


class Damaged(ValueError):
    """Error of a damaged or foreign state file; the message has the cause, as a clause."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file without following a link, or waiting for the other end of a pipe.

    Raises:
        Damaged: Its name belongs to something other than a regular file.
        FileNotFoundError: It does not exist.
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
    """Return the content of a small file.

    Raises:
        Damaged: It is not a regular file, is larger than any of ours, or cannot be read from the disk.
        FileNotFoundError: It does not exist.
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
    """Replace a file atomically and durably.

    Raises:
        OSError: It cannot be written; the previous file is unchanged.
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
    """Quarantine an unusable file by renaming it in its folder, and log that. Its content is unchanged.

    The caller holds a lock against concurrent quarantines, which would rename its successor.

    Args:
        path: The file.
        why: Its fault, as a clause.

    Raises:
        OSError: It cannot be renamed, since the folder is not writable or it is a mount point.
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
    """Create the state folder, or a folder below it; quarantine other entries with its name.

    Other entries at the path of the state folder, and links, belong to the operator: they are unchanged.

    Args:
        state: The state folder.
        names: Path components from there to the folder, if it is another one.

    Raises:
        OSError: It cannot be created.
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
    """Quarantine an entry that has the name of a folder but is not one."""
    if folder.is_symlink():
        # The disk of its target may be mounted again.
        raise FileNotFoundError(errno.ENOENT, f"{folder.name} is a link that leads to no folder")
    with holding(folder.parent):
        # Another process may have been faster.
        if folder.exists() and not folder.is_dir():
            set_apart(folder, "it is not a folder")


def open_lock(path: Path) -> int:
    """Open a lock file, creating it if needed; quarantine any other entry with its name.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT
    with contextlib.suppress(Damaged):
        return open_regular(path, flags)
    with holding(path.parent):
        # Another process may have quarantined it first.
        with contextlib.suppress(Damaged):
            return open_regular(path, flags)
        set_apart(path, "it is not a file")
        return open_regular(path, flags)


@contextmanager
def holding(folder: Path) -> Iterator[int]:
    """Lock a folder, so that one process at a time changes its entries.

    Raises:
        OSError: It cannot be opened.
    """
    with locks.held(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        yield fd
