"""Partial files of a terminated call, found in its home and discarded.

A home is measured once more when a call that may write it has answered, since a burst can fall between two
checks. If a home is over its limit when a call begins, as after two concurrent calls, the call may only make
it smaller.

Source: requirement S1-123; the architecture's decisions "Time" and "Homes"; docs/isolation.md.
"""

import contextlib
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from runner.homes.changes import Changes
from runner.homes.emptying import remove
from runner.system.openat import CONFINED, openat2
from runner.system.threads import run_in_thread
from sandbox.host.call_watch import overfull
from sandbox.host.home_usage import HomeUsage, measure
from sandbox.outcome import Reached
from sandbox.policy import Limits

__all__ = ["Leftovers", "walk"]

_MAX_ENTRIES = 20_000
_FEW_ENTRIES = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

Walk = Generator[tuple[int, "os.DirEntry[str]"], None, None]


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The entries of a home when a call began, by inode.

    A home with more than 20,000 entries is not recorded, and nothing is discarded from it: it is better to
    keep too much than to lose a file of an earlier call.

    Attributes:
        known: The inodes, or None if there are too many.
        usage: Content of the home, as far as it was walked.
        changes: Receives the files of the home when the call has answered, if they are collected.
    """

    known: frozenset[int] | None
    usage: HomeUsage = field(default_factory=HomeUsage)
    changes: Changes | None = None

    @classmethod
    async def before(cls, home_fd: int, changes: Changes | None = None) -> "Leftovers":
        """Record the present content of the home.

        Args:
            home_fd: The home.
            changes: Receives the files that exist now, and those that exist afterwards.
        """
        found = cls(None, HomeUsage(), changes)
        known: set[int] = set()
        entries = walk(home_fd)
        # A home with many entries would block every other call.
        all_known = found._remember(entries, known, min(_FEW_ENTRIES, _MAX_ENTRIES)) or (
            await run_in_thread(found._remember, entries, known, _MAX_ENTRIES)
        )
        return replace(found, known=frozenset(known) if all_known else None)

    def _remember(self, entries: Walk, known: set[int], limit: int) -> bool:
        """Add the inodes and sizes of further entries up to `limit`; return whether these were all."""
        for _folder, entry in entries:
            known.add(entry.inode())
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                self.usage.count(found)
                if self.changes is not None:
                    self.changes.there_before(found)
            if len(known) > limit:
                return False
        return True

    def room(self, limits: Limits) -> Limits:
        """Return the limits of a call, raised to the present usage of the home if that is higher."""
        if not self._is_over(limits):
            return limits
        return replace(
            limits,
            home_bytes=max(limits.home_bytes, self.usage.bytes),
            home_entries=max(limits.home_entries, self.usage.entries),
        )

    async def overfilled(self, home_fd: int, limits: Limits) -> Reached | None:
        """Return the limit that an answered call has exceeded; a home may stay as full as it was."""
        room = self.room(limits)
        seen = None if self.changes is None else self.changes.there_after
        usage = measure(home_fd, most_entries=min(_FEW_ENTRIES, room.home_entries), seen=seen)
        if _FEW_ENTRIES < usage.entries <= room.home_entries:
            # A home with many entries would block every other call.
            usage = await run_in_thread(measure, home_fd, most_entries=room.home_entries, seen=seen)
        return overfull(usage, room)

    def _is_over(self, limits: Limits) -> bool:
        return self.usage.bytes > limits.home_bytes or self.usage.entries > limits.home_entries

    def beside_others(self) -> "Leftovers":
        """Return leftovers that also spare files left by other calls."""
        if self.known is None or self.changes is None:
            return self
        return replace(self, known=self.known | {change.inode for change in self.changes.left})

    def discard(self, home_fd: int) -> int:
        """Remove all new entries; return their number. Links are never followed.

        A new folder stays if an older entry was moved into it.
        """
        if self.known is None:
            return 0
        removed = self._discard_folders(home_fd, self.known)
        for folder, entry in walk(home_fd):
            if entry.inode() not in self.known and not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
                    removed += 1
        return removed

    def _discard_folders(self, home_fd: int, known: frozenset[int]) -> int:
        """Remove new folders with their content at any depth: too deep entries cannot be measured."""
        removed = 0
        pending = ["."]
        while pending:
            path = pending.pop()
            with contextlib.suppress(OSError), _opened(home_fd, path) as folder:
                for name, inode in _folders_in(folder):
                    if inode in known:
                        pending.append(f"{path}/{name}")
                    elif not _holds(folder, name, known):
                        removed += remove(folder, name).removed
        return removed


@contextlib.contextmanager
def _opened(folder: int, path: str) -> Iterator[int]:
    opened = openat2(folder, path, _FOLDER, resolve=CONFINED)
    try:
        yield opened
    finally:
        os.close(opened)


def _folders_in(folder: int) -> list[tuple[str, int]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.inode()) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _holds(folder: int, name: str, known: frozenset[int]) -> bool:
    """Return whether a new folder contains an older entry."""
    try:
        with _opened(folder, name) as inside:
            return any(entry.inode() in known for _folder, entry in walk(inside))
    except OSError:
        # No honest tool makes a folder that cannot be listed.
        return False


def walk(home_fd: int) -> Walk:
    """Yield each entry of a home with a descriptor of its folder; never through a link or a mount.

    Only one folder is open at a time, since a tool may create any number.
    """
    pending = ["."]
    while pending:
        path = pending.pop()
        try:
            folder = openat2(home_fd, path, _FOLDER, resolve=CONFINED)
        except OSError:
            # Removed or replaced meanwhile, or a path too long for the kernel.
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield folder, entry
                    if entry.is_dir(follow_symlinks=False) and len(pending) < _MAX_ENTRIES:
                        pending.append(f"{path}/{entry.name}")
        finally:
            os.close(folder)
