"""The audit log: JSON lines for the begin and end of each call and each act of an operator, in a chain.

A line ends with the SHA-256 of all of it before, and holds that of the line before as `prev`, so no line can
be changed, left out or put in between unnoticed by whoever has the last hash. Lines are only ever added, in
files `audit-000001.jsonl`, `audit-000002.jsonl`, … of one folder; `head.json` beside them has what was
written last, so that lines missing at the end are noticed too. Several processes may write: one lock orders
them.

A call has two lines: `begin`, written while its worker runs and before its answer, and `call`, written within
a tenth of a second after it. A host that is killed leaves the first without the second. Both are on disk
within a second; no call and no event loop waits. What is cut short by an end of the machine stays as
it is, and the next file says so. A disk that has taken a line may fail to keep it, and the kernel reports
that once and forgets: so a line stays in memory until it is on disk, and is written again.

Source: RFC 6962, 2.1 (a log that only grows), simplified to a chain; flock(2); fsync(2), "NOTES";
`docs/operating.md`.
"""

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
import logging
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.errors import CallError, Code, UsageError
from runner.observation.call_record import CallRecord, FileFacts
from runner.system import locks
from runner.system.state_files import (
    Damaged,
    open_lock,
    open_regular,
    read_whole,
    sync_folder,
    write_whole,
)

__all__ = [
    "FILES",
    "GENESIS",
    "MOST_PENDING",
    "AuditLog",
    "Head",
    "NotedCall",
    "chained",
    "read_head",
]

log = logging.getLogger(__name__)

GENESIS = "0" * 64
"""What the first line of all names as the one before it."""

FILES = re.compile(r"audit-(\d{6,})\.jsonl")
"""Names of the files, with their number."""

MOST_PENDING = 1000
"""So many records wait for a disk that takes them; then calls are refused."""

# So many records are held for a disk that takes none; later ones are those of refused calls, and counted.
_MOST_HELD = 3 * MOST_PENDING
# So many records are written at once, at most.
_AT_ONCE = 100
# Some 70,000 calls: small enough to be moved and searched, and few files a month.
_FILE_BYTES = 64 * 1024 * 1024
_KEY_BYTES = 32
_HEAD_CHARS = 256
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """End of the log.

    Attributes:
        file: Number of the last file; 0 before the first.
        size: Its length in bytes.
        seq: Number of the last line.
        hash: Its hash.
    """

    file: int = 0
    size: int = 0
    seq: int = 0
    hash: str = GENESIS

    def line(self) -> bytes:
        """Return it as `head.json` has it: of one length, so that it is written over in one piece."""
        told = f'{{"file":{self.file},"size":{self.size},"seq":{self.seq},"hash":"{self.hash}"}}'
        return told.ljust(_HEAD_CHARS).encode() + b"\n"


def chained(said: Mapping[str, Any], before: Head) -> tuple[bytes, str]:
    """Return the line that follows another one, and its hash."""
    body = _COMPACT.encode({"seq": before.seq + 1, **said, "prev": before.hash})[:-1]
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body},"hash":"{digest}"}}\n'.encode(), digest


def read_head(folder: Path) -> Head | None:
    """Return where the log ends by what was noted of it; None if that is missing or no such note."""
    try:
        said = json.loads((folder / "head.json").read_bytes())
        head = Head(file=said["file"], size=said["size"], seq=said["seq"], hash=said["hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers = (head.file, head.size, head.seq)
    return head if all(type(n) is int for n in numbers) and isinstance(head.hash, str) else None


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that was written, and is perhaps not on disk yet."""

    seq: int
    offset: int
    text: bytes


@dataclass(slots=True, kw_only=True, eq=False)
class NotedCall:
    """A call that has begun, whose first line is to be written before its answer.

    Attributes:
        log: The log.
        said: Content of the line: `call`, its id, `user`, `method`, `tool`.
        arguments: Arguments from the client; for a digest only.
        digest: Digest of the arguments, once the line was written.
    """

    log: "AuditLog"
    said: Mapping[str, str]
    arguments: object = field(repr=False)
    digest: str | None = None

    def write(self) -> None:
        """Write the line, if that has not been done."""
        if self.digest is None:
            self.digest, self.arguments = self.log.digest(self.arguments), None
            self.log.add({"kind": "begin", **self.said, "arguments": self.digest})


@dataclass(slots=True, kw_only=True, eq=False)
class AuditLog:
    """The end of an audit log, to which records are added. Make one with `open`.

    Attributes:
        folder: Where its files are.
        max_bytes: Size at which a file is full, and the next one begins.
        clock: Says the present time in seconds since the epoch.
    """

    folder: Path
    max_bytes: int
    clock: Callable[[], float] = time.time
    _key: bytes = field(default=b"", repr=False)
    _lock: int = -1
    _head_fd: int = -1
    _fd: int = -1
    _known: Head | None = None
    _known_line: bytes = b""
    _named: tuple[int, str] = (0, "")
    # Of the file that is open; of an earlier one nothing is left to do.
    _unsynced: "deque[_Line]" = field(default_factory=deque)
    # Files that are full, with their lines that are perhaps not on disk yet.
    _full: "list[tuple[int, Sequence[_Line]]]" = field(default_factory=list)
    _is_new: bool = False
    _pending: "deque[Mapping[str, Any]]" = field(default_factory=deque)
    _dropped: int = 0
    _fault: str | None = None
    _sync_fault: str | None = None

    @classmethod
    def open(cls, folder: Path, *, max_bytes: int = _FILE_BYTES) -> "AuditLog":
        """Open the audit log of a folder, and make it if there is none.

        Raises:
            UsageError: The folder cannot be used; the message says why.
        """
        made = cls(folder=folder, max_bytes=max_bytes)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise UsageError(
                    f"audit_dir {folder} is not this user's alone; `chown {os.geteuid()} {folder} && "
                    f"chmod 700 {folder}`, or name another folder"
                )
            made._key = _key_of(folder)
            made._lock = open_lock(folder / "audit.lock")
            made._head_fd = open_regular(folder / "head.json", os.O_RDWR | os.O_CREAT)
        except (OSError, ValueError) as error:
            raise UsageError(f"audit_dir {folder} cannot be used: {error}; name another folder") from error
        return made

    @property
    def fault(self) -> str | None:
        """Return why records cannot be written now; None while they can."""
        if self._fault is None and self._sync_fault is not None:
            return f"its disk does not keep what was written ({self._sync_fault})"
        return self._fault

    @property
    def pending(self) -> int:
        """Return how many records wait to be written, or to be written again."""
        unkept = len(self._unsynced) + sum(len(lines) for _, lines in self._full)
        return len(self._pending) + (0 if self._sync_fault is None else unkept)

    def digest(self, value: object) -> str:
        """Return what stands for a value: equal for equal values, and of no use without the folder's key."""
        return "hmac-sha256:" + hmac.digest(self._key, _SORTED.encode(value).encode(), "sha256").hex()

    def check(self) -> None:
        """Refuse a call of which nothing could be recorded.

        Raises:
            CallError: `E_STORE`: the disk has taken nothing for so long that no more records may wait.
        """
        if self.pending >= MOST_PENDING:
            self.flush()
        if self.pending >= MOST_PENDING:
            raise CallError(
                Code.E_STORE,
                f"The audit log cannot be written ({self.fault}), so no further call is taken; "
                "the operator has to make room in audit_dir",
            )

    @property
    def _where(self) -> dict[str, str]:
        return {"folder": str(self.folder)}

    def calls_ended(self, calls: Iterable[tuple[CallRecord, NotedCall | None]]) -> None:
        """Add the records of calls, each with its first line, where it has one."""
        for record, noted in calls:
            self._wait(self._said_of(record, noted))
        self.flush()

    def _said_of(self, record: CallRecord, noted: NotedCall | None) -> Mapping[str, Any]:
        """Return what is recorded of a call."""
        digest = None if noted is None else noted.digest
        said: dict[str, Any] = {
            "time": _written(self.clock()),
            "kind": "call",
            "call": record.id,
            "user": record.user,
            "method": record.method,
            "tool": record.tool,
            "outcome": record.outcome,
            "elapsed_ms": round(record.elapsed_s * 1000, 1),
            "arguments": digest or self.digest(record.arguments),
            "inputs": [_told(file) for file in record.inputs],
            "outputs": [_told(file) for file in record.outputs],
            "policy": {"tier": record.tier, "worker": record.worker},
            "denials": [f"{operation} by {layer}" for operation, layer in record.denials],
        }
        if record.generated:
            said["generated"] = [{"id": file.id, **_told(file)} for file in record.generated]
        return said

    def add(self, said: Mapping[str, Any]) -> None:
        """Add a record; while the disk takes none, it waits."""
        self._wait({"time": _written(self.clock()), **said})
        self.flush()

    def _wait(self, said: Mapping[str, Any]) -> None:
        # Calls that are let in never have so many lines; those that are refused have no end.
        if len(self._pending) < _MOST_HELD:
            self._pending.append(said)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Write what waits, as far as the disk takes it."""
        if not self._pending or self._lock < 0:
            return
        try:
            with locks.locked(self._lock):
                while self._pending or self._dropped:
                    if not self._pending:
                        facts = {"kind": "dropped", "count": self._dropped}
                        self._pending.append({"time": _written(self.clock()), **facts})
                        self._dropped = 0
                    for _ in range(self._write(list(itertools.islice(self._pending, _AT_ONCE)))):
                        self._pending.popleft()
        except OSError as error:
            if self._fault is None:
                log.error(  # noqa: TRY400 - what it means is said; where we met it tells nobody anything
                    "the audit log cannot be written; records wait",
                    extra={**self._where, "problem": error.strerror},
                )
            self._fault = error.strerror or "unknown"
            return
        if self._fault is not None:
            log.warning("the audit log can be written again", extra=self._where)
        self._fault = None

    def sync(self) -> None:
        """Wait until what was written is on disk.

        Raises:
            OSError: The disk has not kept it; at the next time it is written again.
        """
        files, is_new, again = self._unkept()
        try:
            _keep(files, self.folder if is_new else None, again=again)
        except OSError as error:
            self._not_kept(error, is_new=is_new)
            raise
        self._kept(files)

    async def synced(self) -> None:
        """Sync in a thread: nothing else waits for it, and a fault is logged."""
        files, is_new, again = self._unkept()
        if not files:
            return
        try:
            await asyncio.to_thread(_keep, files, self.folder if is_new else None, again=again)
        except OSError as error:
            self._not_kept(error, is_new=is_new)
        else:
            self._kept(files)

    def _unkept(self) -> "tuple[list[tuple[int, Sequence[_Line]]], bool, bool]":
        """Return each file with its lines, if a file is new, and if its lines are to be written again."""
        files = [(os.dup(fd), lines) for fd, lines in self._full]
        if self._unsynced and self._fd >= 0:
            files.append((os.dup(self._fd), tuple(self._unsynced)))
        is_new, self._is_new = self._is_new and bool(files), self._is_new and not files
        return files, is_new, self._sync_fault is not None

    def _not_kept(self, error: OSError, *, is_new: bool) -> None:
        self._is_new |= is_new
        if self._sync_fault is None:
            count = len(self._unsynced) + sum(len(lines) for _, lines in self._full)
            log.error(
                "the disk has not kept what was written to the audit log; it is written again",
                extra={**self._where, "problem": error.strerror, "count": count},
            )
        self._sync_fault = error.strerror or "unknown"

    def _kept(self, files: "Sequence[tuple[int, Sequence[_Line]]]") -> None:
        """Forget lines that are on disk; what was written meanwhile may not be."""
        last = max((lines[-1].seq for _, lines in files), default=0)
        for fd, lines in [full for full in self._full if full[1][-1].seq <= last]:
            os.close(fd)
            self._full.remove((fd, lines))
        self._full = [(fd, [line for line in lines if line.seq > last]) for fd, lines in self._full]
        while self._unsynced and self._unsynced[0].seq <= last:
            self._unsynced.popleft()
        if self._sync_fault is not None:
            log.warning("the audit log is on its disk again", extra=self._where)
        self._sync_fault = None

    def close(self) -> None:
        """Write and keep what can be, and let go of the files."""
        if self._lock < 0:
            return
        self.flush()
        if self._pending:
            log.error("records of the audit log are lost", extra={"count": len(self._pending)})
        try:
            self.sync()
        except OSError as error:
            facts = {"count": self.pending, "problem": error.strerror}
            log.error("records of the audit log may not be on its disk", extra=facts)  # noqa: TRY400 - as above
        for fd in (*(fd for fd, _ in self._full), self._fd, self._head_fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._full.clear()
        self._fd = self._head_fd = self._lock = -1

    def _write(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Write records into the file that is open, and say how many it took: fewer if it is full by then."""
        begun = self._end()
        if self._fd < 0 or begun.size >= self.max_bytes:
            begun = self._next_file(begun)
        head, lines = begun, []
        for said in records:
            text, digest = chained(said, head)
            lines.append(_Line(head.seq + 1, head.size, text))
            head = Head(file=head.file, size=head.size + len(text), seq=head.seq + 1, hash=digest)
            if head.size >= self.max_bytes:
                break
        content, done = b"".join(line.text for line in lines), 0
        try:
            while done < len(content):
                done += os.write(self._fd, content[done:])
        except OSError:
            # Ours alone, under the lock: a half line would be read as a damaged one.
            os.ftruncate(self._fd, begun.size)
            if len(lines) > 1:
                # There may be room for fewer.
                return self._write(records[:1])
            raise
        self._unsynced.extend(lines)
        self._note(head)
        return len(lines)

    def _note(self, head: Head) -> None:
        self._known, self._known_line = head, head.line()
        # The line is in the log, and its record waits no more, whatever becomes of the note: the next one
        # finds the end without it.
        with contextlib.suppress(OSError):
            os.pwrite(self._head_fd, self._known_line, 0)

    def _end(self) -> Head:
        """Return where the log ends, also after another process has added to it, or has died while it did."""
        if self._known is not None and self._is_as_known(self._known):
            return self._known
        numbers = sorted(self._numbers())
        head = read_head(self.folder) or self._by_hand(max(numbers, default=0))
        for number in (number for number in numbers if number >= head.file):
            if number > head.file:
                head = Head(file=number, seq=head.seq, hash=head.hash)
            if self._size_of_open(number) is None:
                self._let_go()
                try:
                    self._fd = open_regular(self._path(number), os.O_RDWR | os.O_APPEND)
                except Damaged:
                    # Something else has that name: it stays, and a file begins behind it.
                    continue
            size = os.fstat(self._fd).st_size
            head = self._caught_up(head, size)
            if head.size != size:
                # Half a line, of a process that died, or less than was noted: it stays, and a file begins.
                self._let_go()
        if self._size_of_open(head.file) is None:
            self._let_go()
        return head

    def _is_as_known(self, known: Head) -> bool:
        if self._fd < 0 or os.pread(self._head_fd, len(self._known_line), 0) != self._known_line:
            return False
        return self._size_of_open(known.file) == known.size

    def _size_of_open(self, number: int) -> int | None:
        """Return the size of a file, if it is the one that is open; it may have been moved away."""
        if self._fd < 0:
            return None
        if self._named[0] != number:
            # Kept: with each record, a path costs as much as its line.
            self._named = number, str(self._path(number))
        try:
            found = os.stat(self._named[1], follow_symlinks=False)
        except OSError:
            return None
        return found.st_size if os.path.samestat(found, os.fstat(self._fd)) else None

    def _caught_up(self, head: Head, size: int) -> Head:
        """Return the head after the whole lines that were written, and not noted."""
        tail = os.pread(self._fd, max(size - head.size, 0), head.size)
        for line in tail.splitlines(keepends=True):
            try:
                said = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                said = None
            if not isinstance(said, dict) or said.get("prev") != head.hash:
                break
            head = Head(
                file=head.file, size=head.size + len(line), seq=head.seq + 1, hash=str(said.get("hash"))
            )
        return head

    def _by_hand(self, last: int) -> Head:
        """Return where the log ends by its last file, where nothing says it."""
        for number in range(last, 0, -1):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
                with open(open_regular(self._path(number)), "rb") as file:
                    lines = file.read().splitlines(keepends=True)
                whole = [line for line in lines if line.endswith(b"\n")]
                said = json.loads(whole[-1])
                return Head(
                    file=number, size=sum(map(len, whole)), seq=int(said["seq"]), hash=str(said["hash"])
                )
        return Head()

    def _next_file(self, head: Head) -> Head:
        self._let_go()
        number = max(max(self._numbers(), default=0), head.file) + 1
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path(number), flags, 0o600)
        self._is_new = True
        return Head(file=number, seq=head.seq, hash=head.hash)

    def _let_go(self) -> None:
        """Close the file, or leave that to the sync that puts its last lines on disk."""
        if self._fd >= 0 and self._unsynced:
            self._full.append((self._fd, tuple(self._unsynced)))
            self._unsynced.clear()
        elif self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _numbers(self) -> list[int]:
        found = (FILES.fullmatch(name) for name in os.listdir(self.folder))
        return [int(match[1]) for match in found if match]

    def _path(self, number: int) -> Path:
        return self.folder / f"audit-{number:06}.jsonl"


def _keep(files: Sequence[tuple[int, Sequence[_Line]]], folder: Path | None, *, again: bool) -> None:
    """Wait until files are on disk, and close them.

    Args:
        files: Descriptors, each with the lines that the disk may not have.
        folder: Folder whose entries are to be on disk, too, if there is a new one.
        again: Write the lines anew: the kernel takes what a disk has failed to keep for written.

    Raises:
        OSError: The disk has not kept them.
    """
    try:
        for fd, lines in files:
            if again:
                # The file may have another name by now; and what is open appends.
                writing = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    for line in lines:
                        done = 0
                        while done < len(line.text):
                            done += os.pwrite(writing, line.text[done:], line.offset + done)
                finally:
                    os.close(writing)
            os.fdatasync(fd)
        if folder is not None:
            sync_folder(folder)
    finally:
        for fd, _ in files:
            os.close(fd)


def _written(seconds: float) -> str:
    """Return a time as lines have it."""
    stamp = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")


def _told(file: FileFacts) -> dict[str, Any]:
    return {"sha256": file.sha256, "bytes": file.size}


def _key_of(folder: Path) -> bytes:
    path = folder / "key"
    with contextlib.suppress(FileNotFoundError):
        key = read_whole(path)
        if len(key) == _KEY_BYTES:
            return key
        raise ValueError(f"{path.name} is not the key that was made here; restore it, or move it away")
    key = secrets.token_bytes(_KEY_BYTES)
    write_whole(path, key)
    return key
