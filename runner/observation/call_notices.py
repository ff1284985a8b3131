"""Notices of calls under way, beside the audit log: of a host that is killed they tell what it did.

A record is written once its call has been answered, so that nobody waits for it. Before the answer a notice
of the call is in a file of its host, mostly written while the worker runs; it is taken back when the record
is in the log. A host that is killed leaves its file with what is not in the log, and whoever opens the log
next records those calls.

A file has one line of a fixed length for each call under way, is locked for as long as its host runs, and
goes with it.

Source: flock(2); `docs/observation.md`, "The audit log".
"""

import contextlib
import errno
import heapq
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.system import locks
from runner.system.state_files import Damaged, open_regular

__all__ = ["FACTS", "CallNotices", "LeftCall", "LeftNotices", "left_notices"]

FACTS = ("call", "user", "method", "tool", "began", "arguments")
"""What a notice says: the call's id, who calls, what, when (seconds), and a digest of the arguments."""

_FILES = re.compile(r"under-way-[0-9a-f]{16}\.notices")
_LINE_BYTES = 1024
# So many calls under way have a notice; of further ones the record is written before their answer.
_MOST = 4096
_TAKEN_BACK = b" "
# The end of the year 9999, which is the last that can be written.
_LATEST = 253402300800.0
_COMPACT = json.JSONEncoder(separators=(",", ":"))


@dataclass(slots=True, eq=False)
class CallNotices:
    """Those of one host.

    Attributes:
        folder: Where the audit log is.
    """

    folder: Path
    _fd: int = -1
    _path: Path = Path()
    _lines: dict[int, bytes] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Return whether there is a file."""
        return self._fd >= 0

    @property
    def is_missing(self) -> bool:
        """Return whether somebody has removed the file."""
        return self._fd >= 0 and not locks.is_linked(self._fd)

    def open(self) -> None:
        """Make the file, with the notices that there are.

        Whoever calls holds the lock of the log, so that nobody takes the file for one left behind.

        Raises:
            OSError: The folder takes none.
            Damaged: Something else has its name.
        """
        path = self.folder / f"under-way-{secrets.token_hex(8)}.notices"
        fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            _locked(fd)
            for number, line in self._lines.items():
                os.pwrite(fd, line, number * _LINE_BYTES)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path = fd, path

    def write(self, said: Mapping[str, str]) -> int | None:
        """Note a call by its `FACTS`; return the number of its line, None where there is no room for it."""
        line = _COMPACT.encode(said).encode()
        if self._fd < 0 or len(line) >= _LINE_BYTES or len(self._lines) >= _MOST:
            return None
        line = line.ljust(_LINE_BYTES - 1) + b"\n"
        number = self._free[0] if self._free else len(self._lines)
        try:
            if os.pwrite(self._fd, line, number * _LINE_BYTES) < _LINE_BYTES:
                # The disk is full. What stands there is cut short, and no notice.
                return None
        except OSError:
            return None
        if self._free:
            heapq.heappop(self._free)
        self._lines[number] = line
        return number

    def take_back(self, number: int) -> None:
        """Take a notice back, whose call is in the log."""
        if self._fd >= 0:
            _blank(self._fd, number)
        if self._lines.pop(number, None) is not None:
            heapq.heappush(self._free, number)

    def close(self) -> None:
        """Let go of the file, and remove it where no notice is left in it."""
        if self._fd < 0:
            return
        if not self._lines:
            with contextlib.suppress(OSError):
                self._path.unlink()
        locks.let_go(self._fd)
        self._fd = -1


@dataclass(frozen=True, slots=True)
class LeftCall:
    """A call of a host that has ended.

    Attributes:
        said: What its notice says, by the names of `FACTS`.
        began: When it began, in seconds since the epoch.
    """

    said: Mapping[str, str]
    began: float
    _fd: int
    _number: int

    def take_back(self) -> None:
        """Take its notice back, since the call is in the log."""
        _blank(self._fd, self._number)


@dataclass(frozen=True, slots=True)
class LeftNotices:
    """What a host that has ended has left behind.

    Attributes:
        path: The file.
        calls: The calls that it tells of, which may be in the log, too, if their host was killed in between.
        unread: How many lines are no notice, though they are not empty.
        is_writable: Whether its notices can be taken back.
    """

    path: Path
    calls: tuple[LeftCall, ...]
    unread: int
    is_writable: bool


@contextlib.contextmanager
def left_notices(folder: Path, lock: int | None = None) -> Iterator[tuple[LeftNotices, ...]]:
    """Yield what hosts that have ended have left in a folder; nobody else has it until the block ends.

    Args:
        folder: Where the audit log is.
        lock: The open lock of the log, held while the files are looked for: one that is just being made is
            not locked yet. Without it such a file may be among them, and has no notice.
    """
    with contextlib.ExitStack() as stack:
        with locks.locked(lock) if lock is not None else contextlib.nullcontext():
            paths = sorted(path for path in folder.iterdir() if _FILES.fullmatch(path.name))
            held = [(path, *found) for path in paths if (found := _ours(path)) is not None]
        for _, fd, _ in held:
            stack.callback(locks.let_go, fd)
        yield tuple(_read(path, fd, is_writable=is_writable) for path, fd, is_writable in held)


def _locked(fd: int) -> None:
    # Somebody who verifies the log may hold it for a moment; nobody waits for that.
    if not locks.try_lock(fd):
        raise BlockingIOError(errno.EAGAIN, "somebody looks at it")


def _blank(fd: int, number: int) -> None:
    # If the disk does not take that, the call is recorded once more by whoever comes after this host.
    with contextlib.suppress(OSError):
        os.pwrite(fd, _TAKEN_BACK, number * _LINE_BYTES)


def _ours(path: Path) -> tuple[int, bool] | None:
    """Return a file that no host holds, locked, and whether it can be written; None for any other."""
    is_writable = os.access(path, os.W_OK)
    try:
        fd = open_regular(path, os.O_RDWR if is_writable else os.O_RDONLY)
    except (Damaged, OSError):
        return None
    with contextlib.suppress(OSError):
        if locks.try_lock(fd) and locks.is_linked(fd):
            return fd, is_writable
    os.close(fd)
    return None


def _read(path: Path, fd: int, *, is_writable: bool) -> LeftNotices:
    content = os.pread(fd, _MOST * _LINE_BYTES, 0)
    lines = [content[at : at + _LINE_BYTES] for at in range(0, len(content), _LINE_BYTES)]
    # One that was taken back begins with a blank; one that was never whole has no end.
    whole = [
        (number, line)
        for number, line in enumerate(lines)
        if line.endswith(b"\n") and not line.startswith((_TAKEN_BACK, b"\0"))
    ]
    calls = tuple(
        LeftCall(*found, fd, number) for number, line in whole if (found := _said_in(line)) is not None
    )
    return LeftNotices(path, calls, len(whole) - len(calls), is_writable)


def _said_in(line: bytes) -> tuple[Mapping[str, str], float] | None:
    """Return what a notice says, and when its call began; None for a line that is none."""
    try:
        said = json.loads(line)
        if said.keys() != set(FACTS) or not all(isinstance(item, str) for item in said.values()):
            return None
        began = float(said["began"])
    except (ValueError, AttributeError, RecursionError):
        return None
    return (said, began) if 0 <= began < _LATEST else None
