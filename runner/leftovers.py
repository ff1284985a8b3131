"""What a call leaves behind in its home when it is ended: partial files, which are discarded.

Source: requirement S1-123; the architecture's decisions "Time" and "Homes".
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Leftovers"]

_MAX_ENTRIES = 20_000


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The entries of a home when a call began, by device and inode.

    A home with more than 20,000 entries is not remembered, and nothing is discarded from it: too
    much is kept rather than something of an earlier call lost.
    """

    known: frozenset[int] | None

    @classmethod
    def before(cls, home_fd: int) -> "Leftovers":
        """Remember what is in the home now."""
        known: set[int] = set()
        for _folder_fd, entry in _walk(home_fd):
            known.add(entry.inode())
            if len(known) > _MAX_ENTRIES:
                return cls(None)
        return cls(frozenset(known))

    def discard(self, home_fd: int) -> int:
        """Remove every file that was not there before; return how many. Never follows a link."""
        if self.known is None:
            return 0
        removed = 0
        for folder_fd, entry in _walk(home_fd):
            if entry.inode() not in self.known and not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder_fd)
                    removed += 1
        return removed


def _walk(home_fd: int) -> "Iterator[tuple[int, os.DirEntry[str]]]":
    """Yield each entry of a tree with the descriptor of its folder; never through a link or a mount."""
    top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=home_fd)
    device = os.fstat(top).st_dev
    pending = [top]
    try:
        while pending:
            folder = pending.pop()
            try:
                with os.scandir(folder) as entries:
                    found = list(entries)
                for entry in found:
                    yield folder, entry
                    child = _open_folder(folder, entry, device)
                    if child is not None:
                        pending.append(child)
            finally:
                os.close(folder)
    finally:
        for folder in pending:
            os.close(folder)


def _open_folder(folder: int, entry: "os.DirEntry[str]", device: int) -> int | None:
    if not entry.is_dir(follow_symlinks=False):
        return None
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        child = os.open(entry.name, flags, dir_fd=folder)
    except OSError:
        return None
    if os.fstat(child).st_dev != device or not stat.S_ISDIR(os.fstat(child).st_mode):
        os.close(child)
        return None
    return child
