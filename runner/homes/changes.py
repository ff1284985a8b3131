"""Files of a home that changed during a call: by change time, in the walk that measures the home.

No tool can set the change time of a file (ctime), so one that is not older than the call was written, changed
or renamed since the call began. Looking costs no walk of its own: `runner.homes.leftovers` measures a home
before and after each call anyway, and tells of what it meets.

Several calls of one user may be under way in one home, in any number of runners, and no change time says
whose a file is. So a file counts only once no other call is under way there: the call that ends last has what
all of them wrote. A call in flight holds a lock of its open file description on the home's folder. The
place of that lock is the time, in ns since 1970, from which on nobody has looked; a call that begins takes
over the earliest place there is, so nothing is missed when the call that had it ends first.

Source: stat(2), inode(7) on st_ctime; fcntl(2) on open file description locks; requirements S1-24, S1-27;
`docs/decisions/0034-collect-generated-files.md`.
"""

import fcntl
import fnmatch
import os
import stat
import struct
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.formats.database_logs import is_log_of_its_own
from runner.system.openat import CONFINED, openat2
from runner.system.threads import run_in_thread

__all__ = ["ChangedFile", "Changes"]

_MOST = 1000
# What SQLite calls a write-ahead log, and DuckDB.
_LOG, _LOG_OF_OTHERS = "-wal", ".wal"
# What change times are taken from advances in steps, at most this long.
_STEP_NS = 10_000_000
_CLOCK_REALTIME_COARSE = 5
# The first usually finds the place of the earliest call, and the second that there is none before it.
_FEW_LOOKS = 2
# Locks of calls are met in the order in which these began. Only a tool's own make for more looks than a few,
# and all it brings about by that is that some of its own files are not told of.
_MOST_LOOKS = 16
# struct flock with 64-bit offsets: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")

_NEVER_OUTPUT = (
    "input_files", ".*", "__pycache__", "*.pyc", "cache", "caches", "tmp", "temp", "*.tmp", "*.temp",
    "*.part", "*.lock", "*.lck", "*.pid", "*-journal", "*-wal", "*-shm", "*~", "*.swp", "fontlist-*.json",
    "fontconfig", "core", "core.[0-9]*", "node_modules",
)  # fmt: skip
"""Patterns of names that are never outputs: of a file, or of any folder that it lies in."""


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
class Changes:
    """Changes in a home since a call began, or since the earliest overlapping one did.

    Attributes:
        beyond: How many changed files were met beyond the first 1000, which are all that is noticed.
    """

    beyond: int = 0
    _since_ns: int = 0
    _began_ns: int = 0
    _lock: int | None = None
    _began_alone: bool = True
    _before: dict[int, tuple[int, int]] = field(default_factory=dict)
    _found: dict[str, ChangedFile] = field(default_factory=dict)

    async def begin(self, home_fd: int) -> None:
        """Be under way in a home from now on, until `end`.

        Raises:
            OSError: The home cannot be opened.
        """
        self._lock = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=home_fd)
        now_ns = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        self._began_ns = self._since_ns = now_ns
        # A tool may hold locks on its home as well, a hundred thousand, and each look passes them all.
        if not self._takes_over(_FEW_LOOKS):
            # A call that ends meanwhile must not find itself alone.
            self._hold()
            await run_in_thread(self._takes_over, _MOST_LOOKS)
        self._began_alone = self._since_ns == now_ns and not self._is_locked(0, 0)
        self._hold()

    def close(self) -> None:
        """Be under way no more, whatever came of the call."""
        self.end()

    @property
    def is_alone(self) -> bool:
        """True if no other call is under way in the home now."""
        return self._lock is not None and not self._is_locked(0, 0)

    def there_before(self, found: os.stat_result) -> None:
        """Record an entry that existed when the call began."""
        # In the step of the clock in which this call began, another may have written it.
        if self._began_ns <= found.st_ctime_ns <= self._began_ns + _STEP_NS:
            self._before[found.st_ino] = (found.st_ctime_ns, found.st_size)

    def there_after(self, path: str, found: os.stat_result) -> None:
        """Record an entry, as `./folder/file`, that exists when the call has answered."""
        if found.st_ctime_ns < self._since_ns or not stat.S_ISREG(found.st_mode):
            return
        # Of a call that is still under way it is looked at with all that that one has changed.
        if self._began_alone and self._was_before(found.st_ino, found.st_ctime_ns, found.st_size):
            return
        seen = ChangedFile(path.removeprefix("./"), found.st_ino, found.st_size, found.st_ctime_ns)
        change = self._of_log(seen) if seen.file.endswith((_LOG, _LOG_OF_OTHERS)) else seen
        if change is None or not _is_output(change.file):
            return
        known = self._found.get(change.file, change)
        if known is not change or len(self._found) < _MOST:
            self._found[change.file] = max(known, change, key=lambda each: each.changed_ns)
        else:
            self.beyond += 1

    def _of_log(self, log: ChangedFile) -> ChangedFile | None:
        """Return the change of the database whose log it is: what was committed may stand only there."""
        other = log if log.file.endswith(_LOG_OF_OTHERS) else None
        if self._lock is None or not log.size:
            return other
        # Both are of one length.
        file = log.file[: -len(_LOG)]
        try:
            fd = openat2(self._lock, file, os.O_PATH | os.O_NOFOLLOW, resolve=CONFINED)
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
        """Be under way no more; say whether no other call is, so that what changed is nobody else's."""
        if self._lock is None:
            return False
        lock, self._lock = self._lock, None
        try:
            # First let go, then look: of two calls that end at once, both may find themselves last, but
            # never none.
            _flock(lock, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 0)
            return _flock(lock, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, 0)[0] == fcntl.F_UNLCK
        finally:
            os.close(lock)

    @property
    def found_since_begin(self) -> list[ChangedFile]:
        """Return those that changed while this call ran, by path."""
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

    def _takes_over(self, looks: int) -> bool:
        """Take over the earliest place of a lock that so many looks find; say whether that is the first."""
        for _ in range(looks):
            if self._since_ns <= 0:
                return True
            kind, _, start, _, _ = self._query(0, self._since_ns)
            if kind == fcntl.F_UNLCK:
                return True
            self._since_ns = max(0, start)
        return False

    def _hold(self) -> None:
        assert self._lock is not None  # noqa: S101 - only called while it is held
        _flock(self._lock, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, self._since_ns, 1)

    def _is_locked(self, start: int, length: int) -> bool:
        return self._query(start, length)[0] != fcntl.F_UNLCK

    def _query(self, start: int, length: int) -> tuple[int, int, int, int, int]:
        assert self._lock is not None  # noqa: S101 - only asked while it is held
        return _flock(self._lock, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length)


def _has_log_of_its_own(handle: int) -> bool:
    try:
        with open(f"/proc/self/fd/{handle}", "rb", buffering=0) as file:
            return is_log_of_its_own(file.fileno())
    except OSError:
        return False


def _flock(fd: int, command: int, kind: int, start: int, length: int) -> tuple[int, int, int, int, int]:
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    kind, whence, start, length, pid = _FLOCK.unpack(answer)
    return kind, whence, start, length, pid


def _is_output(file: str) -> bool:
    """Return whether a file may be somebody's output: neither cache, nor lock, nor hidden, nor temporary.

    Args:
        file: Its path below the home.
    """
    parts = file.split("/")
    return not any(fnmatch.fnmatchcase(part, pattern) for pattern in _NEVER_OUTPUT for part in parts)
