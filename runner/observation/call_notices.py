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
import heapq
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.system import locks
from runner.system.state_files import Damaged, open_regular

__all__ = ["CallNotices", "LeftNotices", "left_notices"]

_FILES = re.compile(r"under-way-[0-9a-f]{16}\.notices")
_LINE_BYTES = 1024
# So many calls under way have a notice; of further ones the record is written before their answer.
_MOST = 4096
_TAKEN_BACK = b" "
_COMPACT = json.JSONEncoder(separators=(",", ":"))


@dataclass(slots=True, eq=False)
class CallNotices:
    """Those of one host.

    Attributes:
        folder: Where the audit log is.
    """

    folder: Path
    _fd: int = -1
    _path: Path | None = None
    _free: list[int] = field(default_factory=list)
    _used: int = 0

    @property
    def is_open(self) -> bool:
        """Return whether there is a file."""
        return self._fd >= 0

    def open(self) -> None:
        """Make the file. Whoever calls holds the lock of the log, so that nobody takes it for one left.

        Raises:
            OSError: The folder takes none.
        """
        path = self.folder / f"under-way-{secrets.token_hex(8)}.notices"
        self._fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._path = path
        locks.wait_for(self._fd)

    def write(self, said: Mapping[str, Any]) -> int | None:
        """Note a call; return the number of its line, or None where there is no room for it."""
        line = _COMPACT.encode(said).encode()
        if self._fd < 0 or len(line) >= _LINE_BYTES or not (self._free or self._used < _MOST):
            return None
        number = self._free[0] if self._free else self._used
        try:
            written = os.pwrite(self._fd, line.ljust(_LINE_BYTES - 1) + b"\n", number * _LINE_BYTES)
        except OSError:
            return None
        if written < _LINE_BYTES:
            # The disk is full. What stands there is cut short, and no notice.
            return None
        if self._free:
            heapq.heappop(self._free)
        else:
            self._used += 1
        return number

    def take_back(self, number: int) -> None:
        """Take a notice back, whose call is in the log."""
        # If the disk does not take that, the call is recorded once more by whoever comes after this host.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _TAKEN_BACK, number * _LINE_BYTES)
        heapq.heappush(self._free, number)

    def close(self) -> None:
        """Let go of the file, and remove it where no notice is left in it."""
        if self._fd < 0:
            return
        if self._path is not None and len(self._free) == self._used:
            with contextlib.suppress(OSError):
                self._path.unlink()
        locks.let_go(self._fd)
        self._fd = -1


@dataclass(frozen=True, slots=True)
class LeftNotices:
    """What a host that has ended has left behind.

    Attributes:
        path: The file.
        calls: The calls that it tells of, which may be in the log, too, if their host was killed in between.
        unread: How many lines are no notice, though they are not empty.
    """

    path: Path
    calls: tuple[Mapping[str, Any], ...]
    unread: int


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
            held = [(path, fd) for path in paths if (fd := _ours(path)) is not None]
        for _, fd in held:
            stack.callback(locks.let_go, fd)
        yield tuple(_read(path, fd) for path, fd in held)


def _ours(path: Path) -> int | None:
    """Return a file that no host holds, locked; None for any other."""
    try:
        fd = open_regular(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    except (Damaged, OSError):
        return None
    try:
        if locks.try_lock(fd) and locks.is_linked(fd):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _read(path: Path, fd: int) -> LeftNotices:
    content = b""
    while len(content) < _MOST * _LINE_BYTES:
        piece = os.pread(fd, _MOST * _LINE_BYTES - len(content), len(content))
        if not piece:
            break
        content += piece
    lines = [content[at : at + _LINE_BYTES] for at in range(0, len(content), _LINE_BYTES)]
    # One that was taken back begins with a blank; one that was never whole has no end.
    whole = [line for line in lines if line.endswith(b"\n") and not line.startswith((_TAKEN_BACK, b"\0"))]
    calls = [call for call in map(_call, whole) if call is not None]
    return LeftNotices(path, tuple(calls), len(whole) - len(calls))


def _call(line: bytes) -> Mapping[str, Any] | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and all(isinstance(item, str) for item in said.values()) else None
