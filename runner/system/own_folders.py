"""Folders that we create in the folder of homes, each held by a lock on the folder itself.

A process that uses such a folder holds it by `flock` on an open descriptor of it. So every runner, with any
state folder, sees that it is in use, and the kernel releases the lock when the runner dies. Cleaners of
temporary folders, such as systemd-tmpfiles, skip a locked folder, too.

A tool can lock its own home as well, but cannot block a runner that way: a runner holds the home from
before the tool's first process until after its last, so a tool can only share an already shared lock.

Source: flock(2), rename(2), openat2(2), systemd-tmpfiles(8), "a BSD file lock".
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import CallError, Code
from runner.system import locks
from runner.system.openat import CONFINED, openat2

__all__ = [
    "HIDDEN",
    "HOME_ATTRIBUTES",
    "HomeError",
    "folders_in",
    "held",
    "is_at",
    "made_folder",
    "open_homes",
    "sweep_unfinished",
]

HIDDEN = ".toolcell-"
"""Prefix of the names of our folders except homes."""

HOME_ATTRIBUTES = ("trusted.toolcell.home", "user.toolcell.home")
"""Extended attributes of homes, for a runner with CAP_SYS_ADMIN and without; a home has one of them."""

_UNFINISHED = f"{HIDDEN}new-"
_ATTEMPTS = 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HomeError(CallError):
    """A home cannot be used; the message has the reason and a remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.E_ISOLATION, message)


@contextmanager
def open_homes(homes: Path) -> Iterator[int]:
    """Open the folder of homes, after checking that others cannot replace our folders in it.

    Raises:
        HomeError: It cannot be used.
    """
    try:
        fd = os.open(homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HomeError(
            f"the folder for homes {homes} cannot be opened: {error.strerror}; "
            f"create it, or choose another one (setting `homes`)"
        ) from error
    try:
        _check(homes, os.fstat(fd))
        yield fd
    finally:
        os.close(fd)


def _check(homes: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise HomeError(
            f"the folder for homes {homes} belongs to the user with id {found.st_uid}, who could "
            f"exchange every home in it; choose one of root's or your own (setting `homes`)"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        raise HomeError(
            f"the folder for homes {homes} can be written by others and has no sticky bit, so "
            f"they could exchange every home in it; chmod +t it, or choose another one (setting `homes`)"
        )


def made_folder(homes_fd: int, prefix: str = _UNFINISHED) -> tuple[str, int]:
    """Create a folder with a random name; return the name and a descriptor that locks it exclusively.

    Raises:
        OSError: It cannot be created.
    """
    for _attempt in range(_ATTEMPTS):
        name = f"{prefix}{secrets.token_hex(8)}"
        os.mkdir(name, 0o700, dir_fd=homes_fd)
        # Until it is locked, a sweep treats it as an orphan.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(name, _FOLDER, dir_fd=homes_fd)
            if locks.try_lock(fd) and is_at(homes_fd, name, fd):
                return name, fd
            os.close(fd)
    raise OSError(errno.EBUSY, "a new folder is swept away as often as it is made")


def is_at(homes_fd: int, name: str, fd: int) -> bool:
    """Return whether a name still leads to the open folder; it may change during a wait for a lock."""
    try:
        there = os.stat(name, dir_fd=homes_fd, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def folders_in(homes_fd: int, ids: Container[int]) -> Iterator[tuple[str, int]]:
    """Yield name and owner of each folder in the folder of homes that belongs to us or to one of `ids`.

    Only root can assign a folder to another id, so for other users folders of `ids` are not ours.
    """
    own = os.geteuid()
    with os.scandir(homes_fd) as entries:
        for entry in entries:
            # It may have been removed meanwhile.
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    owner = entry.stat(follow_symlinks=False).st_uid
                    if owner == own or (own == 0 and owner in ids):
                        yield entry.name, owner


def sweep_unfinished(homes_fd: int) -> None:
    """Remove the empty folders whose creators were killed before renaming them."""
    for name in [name for name, _owner in folders_in(homes_fd, range(0)) if name.startswith(_UNFINISHED)]:
        with contextlib.suppress(OSError), held(homes_fd, name):
            os.rmdir(name, dir_fd=homes_fd)


@contextmanager
def held(homes_fd: int, name: str) -> Iterator[int]:
    """Hold a folder exclusively.

    Raises:
        OSError: It is not a folder, is a mount point, or is locked.
    """
    fd = openat2(homes_fd, name, _FOLDER, resolve=CONFINED)
    try:
        if not locks.try_lock(fd):
            raise BlockingIOError(errno.EWOULDBLOCK, "somebody holds it", name)
        yield fd
    finally:
        locks.let_go(fd)
