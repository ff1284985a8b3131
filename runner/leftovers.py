"""What a call leaves behind in its home when it is ended: partial files, which are discarded.

Source: requirement S1-123; the architecture's decisions "Time" and "Homes".
"""

import asyncio
import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass

from runner.openat import CONFINED, openat2

__all__ = ["Leftovers", "walk"]

_MAX_ENTRIES = 20_000
_FEW_ENTRIES = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

Walk = Generator[tuple[int, "os.DirEntry[str]"], None, None]


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The entries of a home when a call began, by inode.

    A home with more than 20,000 entries is not remembered, and nothing is discarded from it: too
    much is kept rather than something of an earlier call lost.
    """

    known: frozenset[int] | None

    @classmethod
    async def before(cls, home_fd: int) -> "Leftovers":
        """Remember what is in the home now."""
        known: set[int] = set()
        entries = walk(home_fd)
        # A home with much in it would hold up every other call.
        all_known = _remember(entries, known, min(_FEW_ENTRIES, _MAX_ENTRIES)) or await asyncio.to_thread(
            _remember, entries, known, _MAX_ENTRIES
        )
        return cls(frozenset(known) if all_known else None)

    def discard(self, home_fd: int) -> int:
        """Remove every file that was not there before; return how many. Never follows a link."""
        if self.known is None:
            return 0
        removed = 0
        for folder, entry in walk(home_fd):
            if entry.inode() not in self.known and not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
                    removed += 1
        return removed


def _remember(entries: Walk, known: set[int], limit: int) -> bool:
    """Add the inodes of further entries until there are `limit`; say whether that was all."""
    for _folder, entry in entries:
        known.add(entry.inode())
        if len(known) > limit:
            return False
    return True


def walk(home_fd: int) -> Walk:
    """Yield each entry of a home with a descriptor of its folder; never through a link or a mount.

    One folder is open at a time, however many there are: a tool decides that, not we.
    """
    pending = ["."]
    while pending:
        path = pending.pop()
        try:
            folder = openat2(home_fd, path, _FOLDER, resolve=CONFINED)
        except OSError:
            # Gone, or something else by now, or a path beyond what the kernel takes.
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield folder, entry
                    if entry.is_dir(follow_symlinks=False) and len(pending) < _MAX_ENTRIES:
                        pending.append(f"{path}/{entry.name}")
        finally:
            os.close(folder)
