"""Files of a home that changed during calls, by change time, in the walk that measures the home.

No tool can set the change time of a file (ctime). So a file whose change time is not before the start of a
call was written, changed or renamed since. `runner.homes.leftovers` measures a home before and after each
call anyway, and reports each entry here.

Several calls of one user may be in flight in one home, and no change time says which of them wrote a file.
So files count once no other call is in flight there: the call that ends last lists what all of them wrote.
`HomeChanges` counts the calls of this process, and keeps the start of the earliest. Other processes are seen
by a lock of the open file description, which each process with a call in flight holds on the home's folder.
A call that ends earlier leaves its files to the last, which may fail or ignore its own.

Source: stat(2), inode(7) on st_ctime; fcntl(2) on open file description locks; requirements S1-24, S1-27;
`docs/decisions/0034-collect-generated-files.md`.
"""

import fcntl
import logging
import os
import re
import stat
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.formats.database_logs import is_log_of_its_own
from runner.system.openat import CONFINED, openat2

__all__ = ["ChangedFile", "Changes", "HomeChanges"]

_log = logging.getLogger(__name__)

_MOST = 1000
# Suffix of a write-ahead log of SQLite, and of DuckDB.
_LOG, _LOG_OF_OTHERS = "-wal", ".wal"
# The clock of change times advances in steps of at most this length.
_STEP_NS = 10_000_000
_CLOCK_REALTIME_COARSE = 5
# struct flock with 64-bit offsets: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")

# Names that are never outputs, of a file or of a folder that it lies in: one search for a path of any depth.
_NEVER_OUTPUT = re.compile(
    r"(?:^|/)(?:"
    r"input_files|caches?|tmp|temp|__pycache__|fontconfig|node_modules|core(?:\.[0-9][^/]*)?"
    r"|\.[^/]*|fontlist-[^/]*\.json"
    r"|[^/]*(?:\.(?:pyc|tmp|temp|part|lock|lck|pid|swp)|-journal|-wal|-shm|~)"
    r")(?![^/])"
)


class ChangedFile(NamedTuple):
    """A file that changed.

    Attributes:
        file: Its path below the home.
        inode: Its inode.
        size: Its length in bytes.
        changed_ns: Its change time, in ns since 1970.
    """

    file: str
    inode: int
    size: int
    changed_ns: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Home:
    """The calls in flight in one home.

    Attributes:
        lock: A descriptor of its folder, with the lock visible to other processes; None without a call.
        calls: How many calls of this process are in flight.
        since_ns: The start of the earliest of them, in ns since 1970.
        left: Files of calls that have ended, by path.
    """

    lock: int | None = None
    calls: int = 0
    since_ns: int = 0
    left: dict[str, ChangedFile] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class HomeChanges:
    """Changes in all homes of one runner, by name of the home."""

    _homes: dict[str, _Home] = field(default_factory=dict)

    def begin(self, segment: str, home_fd: int) -> "Changes":
        """Return the changes of a call that is in flight from now until `Changes.end`.

        Raises:
            OSError: The home cannot be opened.
        """
        known = self._homes.setdefault(segment, _Home())
        now_ns = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        if known.lock is None:
            known.lock = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=home_fd)
        if not known.calls:
            known.since_ns = now_ns
            _flock(known.lock, fcntl.F_OFD_SETLK, fcntl.F_RDLCK)
        is_alone = known.calls == 0 and not _is_locked(known.lock)
        known.calls += 1
        return Changes(_home=known, _began_ns=now_ns, _since_ns=known.since_ns, _began_alone=is_alone)

    def forget(self, segment: str) -> None:
        """Forget a home that is removed."""
        known = self._homes.pop(segment, None)
        if known is not None and known.left:
            _log.warning("generated files lost with home", extra={"count": len(known.left)})


@dataclass(slots=True, kw_only=True, eq=False)
class Changes:
    """Changes in a home since a call began, or since the earliest overlapping one did.

    Attributes:
        beyond: Number of changed files beyond the first 1000, which are the only ones listed.
    """

    beyond: int = 0
    _home: _Home
    _began_ns: int
    _since_ns: int
    _began_alone: bool
    _has_ended: bool = False
    _before: dict[int, tuple[int, int]] = field(default_factory=dict)
    _found: dict[str, ChangedFile] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """True if no other call is in flight in the home now."""
        home = self._home
        return not self._has_ended and home.calls == 1 and home.lock is not None and not _is_locked(home.lock)

    def there_before(self, found: os.stat_result) -> None:
        """Record an entry that existed when the call began."""
        # Another call may have written it within the clock step in which this call began.
        if self._began_ns <= found.st_ctime_ns <= self._began_ns + _STEP_NS:
            self._before[found.st_ino] = (found.st_ctime_ns, found.st_size)

    def there_after(self, path: str, found: os.stat_result) -> None:
        """Record an entry, as `./folder/file`, that exists when the call has answered."""
        if found.st_ctime_ns < self._since_ns or not stat.S_ISREG(found.st_mode):
            return
        # Otherwise an earlier call still in flight may have written it in that step.
        if self._began_alone and self._was_before(found.st_ino, found.st_ctime_ns, found.st_size):
            return
        seen = ChangedFile(path.removeprefix("./"), found.st_ino, found.st_size, found.st_ctime_ns)
        change = self._of_log(seen) if seen.file.endswith((_LOG, _LOG_OF_OTHERS)) else seen
        if change is None or _NEVER_OUTPUT.search(change.file):
            return
        known = self._found.get(change.file, change)
        if known is not change or len(self._found) < _MOST:
            self._found[change.file] = max(known, change, key=lambda each: each.changed_ns)
        else:
            self.beyond += 1

    def _of_log(self, log: ChangedFile) -> ChangedFile | None:
        """Return the change of the log's database: committed data may be only in the log."""
        other = log if log.file.endswith(_LOG_OF_OTHERS) else None
        if self._home.lock is None or not log.size:
            return other
        # Both suffixes have the same length.
        file = log.file[: -len(_LOG)]
        try:
            fd = openat2(self._home.lock, file, os.O_PATH | os.O_NOFOLLOW, resolve=CONFINED)
        except OSError:
            return other
        try:
            database = os.fstat(fd)
            if not stat.S_ISREG(database.st_mode) or (other is not None and not _has_log_of_its_own(fd)):
                return other
        finally:
            os.close(fd)
        changed_ns = max(database.st_ctime_ns, log.changed_ns)
        return ChangedFile(file, database.st_ino, database.st_size + log.size, changed_ns)

    def end(self) -> bool:
        """End the call; return whether no other is in flight, so that this one lists all changes."""
        home = self._home
        if self._has_ended:
            return False
        self._has_ended = True
        home.calls -= 1
        if home.calls or home.lock is None:
            return False
        lock, home.lock = home.lock, None
        try:
            # Unlock before the check: if calls of two processes end at once, both may be last, never none.
            _flock(lock, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)
            return not _is_locked(lock)
        finally:
            os.close(lock)

    def leave(self, files: Iterable[ChangedFile]) -> None:
        """Leave files, at most 1000 of a home, to the call that ends last."""
        for change in files:
            if change.file in self._home.left or len(self._home.left) < _MOST:
                self._home.left[change.file] = change

    @property
    def left(self) -> list[ChangedFile]:
        """Return the files left by ended calls, by path."""
        return sorted(self._home.left.values())

    def take_left(self, home_fd: int) -> list[ChangedFile]:
        """Return the existing files left by ended calls, and forget them."""
        files = self.left
        self._home.left.clear()
        return [change for change in files if _exists(change, home_fd)]

    @property
    def found_since_begin(self) -> list[ChangedFile]:
        """Return the files that changed while this call ran, by path."""
        return [
            change
            for change in self.found
            if change.changed_ns >= self._began_ns
            and not self._was_before(change.inode, change.changed_ns, change.size)
        ]

    @property
    def found(self) -> list[ChangedFile]:
        """Return the files that changed and may be outputs, by path."""
        return sorted(self._found.values())

    def _was_before(self, inode: int, changed_ns: int, size: int) -> bool:
        return self._before.get(inode) == (changed_ns, size)


def _has_log_of_its_own(handle: int) -> bool:
    try:
        with open(f"/proc/self/fd/{handle}", "rb", buffering=0) as file:
            return is_log_of_its_own(file.fileno())
    except OSError:
        return False


def _flock(fd: int, command: int, kind: int) -> int:
    """Set or query a lock of the whole folder; return the kind of a conflicting lock."""
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
    found: int = _FLOCK.unpack(answer)[0]
    return found


def _is_locked(fd: int) -> bool:
    """Return whether another process has a call in flight in an open home."""
    return _flock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK


def _exists(change: ChangedFile, home_fd: int) -> bool:
    try:
        os.stat(change.file, dir_fd=home_fd, follow_symlinks=False)
    except OSError:
        return False
    return True
