"""The audit log: JSON lines for the begin and end of each call and each act of an operator, in a hash chain.

A line ends with the SHA-256 of all of it before, and holds that of the line before as `prev`. So no line can
be changed, removed or inserted unnoticed by someone who has the last hash. Lines are only appended, to files
`audit-000001.jsonl`, `audit-000002.jsonl`, … of one folder. `head.json` beside them has the last line
written, so that lines missing at the end are noticed too. A lock orders the lines of several processes.

A call has two lines: `begin`, written while its worker runs and before its answer, and `call`, written within
a tenth of a second after it. A host that is killed leaves the first without the second. Both are on disk
within a second; no call and no event loop waits. Half a line of a process that died stays, and the next file
goes on. The kernel reports once that a disk has lost written pages, and forgets it: so a line stays in
memory until a sync has succeeded, and is written again after one that failed.

Source: RFC 6962, 2.1 (an append-only log), simplified to a chain; flock(2); fsync(2), "NOTES";
`docs/operating.md`.
"""

import contextlib
import hashlib
import hmac
import itertools
import json
import logging
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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

__all__ = ["FILES", "GENESIS", "MOST_PENDING", "AuditLog", "BeginLine", "Head", "read_head"]

log = logging.getLogger(__name__)

GENESIS = "0" * 64
"""The `prev` of the first line of all."""

FILES = re.compile(r"audit-(\d{6,})\.jsonl")
"""Names of the files, with their number."""

MOST_PENDING = 1000
"""Number of lines waiting for the disk at which calls are refused."""

# Beyond that, lines of refused calls and logins are counted only.
_MOST_HELD = 3 * MOST_PENDING
_AT_ONCE = 100
# Some 70,000 calls: small enough to be moved and searched, and few files a month.
_FILE_BYTES = 64 * 1024 * 1024
_KEY_BYTES = 32
_HEAD_CHARS = 256
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of the log: number and length of its last file, number and hash of its last line."""

    file: int = 0
    size: int = 0
    seq: int = 0
    hash: str = GENESIS

    def line(self) -> bytes:
        """Return the content of `head.json`: of constant length, so that it is overwritten in one piece."""
        text = f'{{"file":{self.file},"size":{self.size},"seq":{self.seq},"hash":"{self.hash}"}}'
        return text.ljust(_HEAD_CHARS).encode() + b"\n"

    def followed_by(self, record: Mapping[str, Any]) -> tuple[bytes, "Head"]:
        """Return the line of the next record, and the end of the log after it."""
        body = _COMPACT.encode({"seq": self.seq + 1, **record, "prev": self.hash})[:-1]
        digest = hashlib.sha256(body.encode()).hexdigest()
        text = f'{body},"hash":"{digest}"}}\n'.encode()
        return text, Head(file=self.file, size=self.size + len(text), seq=self.seq + 1, hash=digest)


def read_head(folder: Path) -> Head | None:
    """Return the content of `head.json`; None if it is missing or damaged."""
    try:
        read = json.loads((folder / "head.json").read_bytes())
        head = Head(file=read["file"], size=read["size"], seq=read["seq"], hash=read["hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers = (head.file, head.size, head.seq)
    return head if all(type(n) is int for n in numbers) and isinstance(head.hash, str) else None


class _File:
    """A file of the log, open until it is full and no line of it waits for the disk."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.path = fd, path

    def __del__(self) -> None:
        os.close(self.fd)

    def write(self, content: bytes, offset: int) -> None:
        """Write all of it, or raise."""
        while content:
            written = os.pwrite(self.fd, content, offset)
            content, offset = content[written:], offset + written

    def size(self) -> int | None:
        """Return its length; None once its name is of another file, or of none."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return None
        return found.st_size if os.path.samestat(found, os.fstat(self.fd)) else None


@dataclass(slots=True, kw_only=True, eq=False)
class BeginLine:
    """The first line of a call, to be written while its worker runs.

    Attributes:
        log: The log.
        facts: Content of the line: `call`, its id, `user`, `method`, `tool`.
        arguments: Arguments from the client, until the line is written; for a digest only.
        digest: Digest of the arguments, once the line is written.
    """

    log: "AuditLog"
    facts: Mapping[str, str]
    arguments: object = field(repr=False)
    digest: str | None = None

    def write(self) -> None:
        """Write the line, once."""
        if self.digest is None:
            self.digest, self.arguments = self.log.digest(self.arguments), None
            self.log.add({"kind": "begin", **self.facts, "arguments": self.digest})


@dataclass(slots=True, kw_only=True, eq=False)
class AuditLog:
    """The end of an audit log, to which records are added. Make one with `open`.

    Attributes:
        folder: Folder of its files.
        max_bytes: Length at which a file is full, and the next one begins.
    """

    folder: Path
    max_bytes: int
    _key: bytes = field(repr=False)
    _lock: int
    _head_fd: int
    _file: _File | None = None
    _head: Head = field(default_factory=Head)
    # What `head.json` has if no other process has written since.
    _head_line: bytes = b""
    _pending: "deque[Mapping[str, Any]]" = field(default_factory=deque)
    _dropped: int = 0
    # Lines that may not be on disk, with their offsets. Only a sync, in its thread, removes them.
    _unsynced: "list[tuple[_File, int, bytes]]" = field(default_factory=list)
    _syncing: threading.Lock = field(default_factory=threading.Lock)
    _fault: str | None = None
    _sync_fault: str | None = None

    @classmethod
    def open(cls, folder: Path, *, max_bytes: int = _FILE_BYTES) -> "AuditLog":
        """Open the audit log of a folder, and make it if there is none.

        Raises:
            UsageError: The folder cannot be used; the message says why.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise UsageError(
                    f"audit_dir {folder} is not this user's alone; `chown {os.geteuid()} {folder} && "
                    f"chmod 700 {folder}`, or name another folder"
                )
            return cls(
                folder=folder,
                max_bytes=max_bytes,
                _key=_key_of(folder / "key"),
                _lock=open_lock(folder / "audit.lock"),
                _head_fd=open_regular(folder / "head.json", os.O_RDWR | os.O_CREAT),
            )
        except (OSError, ValueError) as error:
            raise UsageError(f"audit_dir {folder} cannot be used: {error}; name another folder") from error

    @property
    def fault(self) -> str | None:
        """Return why records cannot be written now; None while they can."""
        if self._fault is None and self._sync_fault is not None:
            return f"its disk does not keep what was written ({self._sync_fault})"
        return self._fault

    @property
    def pending(self) -> int:
        """Return the number of records that wait to be written, or to be written again."""
        return len(self._pending) + (0 if self._sync_fault is None else len(self._unsynced))

    def digest(self, value: object) -> str:
        """Return the digest of a value: equal for equal values, and of no use without the folder's key."""
        return "hmac-sha256:" + hmac.digest(self._key, _SORTED.encode(value).encode(), "sha256").hex()

    def check(self) -> None:
        """Refuse a call that could not be recorded.

        Raises:
            CallError: `E_STORE`: so many records wait for the disk that no more may.
        """
        if self.pending >= MOST_PENDING:
            self.flush()
        if self.pending >= MOST_PENDING:
            raise CallError(
                Code.E_STORE,
                f"The audit log cannot be written ({self.fault}), so no further call is taken; "
                "the operator has to make room in audit_dir",
            )

    def calls_ended(self, calls: "Iterable[tuple[CallRecord, BeginLine]]") -> None:
        """Add the last lines of calls."""
        for call, begin in calls:
            begin.write()
            self._hold(
                {
                    "kind": "call",
                    "call": call.id,
                    "user": call.user,
                    "method": call.method,
                    "tool": call.tool,
                    "outcome": call.outcome,
                    "elapsed_ms": call.elapsed_ms,
                    "arguments": begin.digest,
                    "inputs": [_facts(file) for file in call.inputs],
                    "outputs": [_facts(file) for file in call.outputs],
                    "policy": {"tier": call.tier, "worker": call.worker},
                    "denials": [f"{operation} by {layer}" for operation, layer in call.denials],
                    **({"approval": call.approval} if call.approval else {}),
                    **({"generated": [_facts(file) for file in call.generated]} if call.generated else {}),
                }
            )
        self.flush()

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record; while the disk takes none, it waits."""
        self._hold(record)
        self.flush()

    def _hold(self, record: Mapping[str, Any]) -> None:
        # Accepted calls never have so many lines; refused ones are not bounded in number.
        if self.pending < _MOST_HELD:
            stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._pending.append({"time": stamp, **record})
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Write pending records, as far as the disk takes them."""
        if self._dropped and self.pending < _MOST_HELD:
            count, self._dropped = self._dropped, 0
            self._hold({"kind": "dropped", "count": count})
        if not self._pending or self._lock < 0:
            return
        try:
            with locks.locked(self._lock):
                while self._pending:
                    for _ in range(self._write(list(itertools.islice(self._pending, _AT_ONCE)))):
                        self._pending.popleft()
        except OSError as error:
            self._log_fault("audit log write failed", error, is_new=self._fault is None)
            self._fault = error.strerror or "unknown"
            return
        if self._fault is not None:
            log.warning("audit log writable again", extra={"folder": str(self.folder)})
        self._fault = None

    def sync(self) -> None:
        """Wait until written lines are on disk; also in a thread, while lines are added.

        After a failure they are written again at the next time: the kernel takes lost pages for written.

        Raises:
            OSError: The disk has not kept them.
        """
        with self._syncing:
            lines = tuple(self._unsynced)
            try:
                for file, offset, text in () if self._sync_fault is None else lines:
                    file.write(text, offset)
                for fd in {file.fd for file, _, _ in lines}:
                    os.fdatasync(fd)
                if lines:
                    # A file may be new.
                    sync_folder(self.folder)
            except OSError as error:
                self._log_fault("audit log sync failed", error, is_new=self._sync_fault is None)
                self._sync_fault = error.strerror or "unknown"
                raise
            del self._unsynced[: len(lines)]
            if self._sync_fault is not None:
                log.warning("audit log synced again", extra={"folder": str(self.folder)})
            self._sync_fault = None

    def _log_fault(self, event: str, error: OSError, *, is_new: bool) -> None:
        if is_new:
            log.error(event, extra={"folder": str(self.folder), "problem": error.strerror})

    def close(self) -> None:
        """Write and sync as far as the disk takes it, and close the files."""
        if self._lock < 0:
            return
        self.flush()
        if self._pending:
            log.error("audit log records lost", extra={"count": len(self._pending)})
        with contextlib.suppress(OSError):
            self.sync()
        if self._unsynced:
            log.error("audit log lines not synced", extra={"count": len(self._unsynced)})
        os.close(self._head_fd)
        os.close(self._lock)
        self._unsynced.clear()
        self._file, self._head_fd, self._lock = None, -1, -1

    def _write(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Write records to one file, and return how many it took: fewer if it is full by then."""
        self._find_end()
        if self._file is None or self._head.size >= self.max_bytes:
            number = max([self._head.file, *self._numbers()]) + 1
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            path = self._path(number)
            self._file = _File(os.open(path, flags, 0o600), path)
            self._head = Head(file=number, seq=self._head.seq, hash=self._head.hash)
        head, lines = self._head, []
        for record in records:
            offset = head.size
            text, head = head.followed_by(record)
            lines.append((self._file, offset, text))
            if head.size >= self.max_bytes:
                break
        try:
            self._file.write(b"".join(text for _, _, text in lines), self._head.size)
        except OSError:
            # Ours alone, under the lock: half a line would be read as a damaged one.
            os.ftruncate(self._file.fd, self._head.size)
            if len(lines) > 1:
                # There may be room for fewer.
                return self._write(records[:1])
            raise
        self._unsynced += lines
        self._head, self._head_line = head, head.line()
        # The lines are in the log whatever becomes of this: the next process finds the end without it.
        with contextlib.suppress(OSError):
            os.pwrite(self._head_fd, self._head_line, 0)
        return len(lines)

    def _find_end(self) -> None:
        """Set file and head to the end of the log; other processes write too, and may die while they do."""
        if (
            self._file is not None
            and os.pread(self._head_fd, len(self._head_line), 0) == self._head_line
            and self._file.size() == self._head.size
        ):
            return
        numbers = sorted(self._numbers())
        head = read_head(self.folder)
        if head is None:
            # From the last file that has a line.
            ends = (self._read_on(Head(file=number)) for number in reversed(numbers))
            head = next((end for end in ends if end.seq), Head())
        self._file = None
        for number in numbers:
            if number >= head.file:
                head = self._read_on(
                    head if number == head.file else Head(file=number, seq=head.seq, hash=head.hash)
                )
        self._head = head

    def _read_on(self, head: Head) -> Head:
        """Open the file of a head, and return the head after the whole lines that follow there."""
        path, self._file = self._path(head.file), None
        try:
            file = _File(open_regular(Path(path), os.O_RDWR), path)
        except Damaged:
            # Something else has that name: it stays, and a file begins behind it.
            return head
        size = os.fstat(file.fd).st_size
        for line in os.pread(file.fd, max(size - head.size, 0), head.size).splitlines(keepends=True):
            try:
                read = json.loads(line) if line.endswith(b"\n") else {}
                if head.seq and read["prev"] != head.hash:
                    break
                head = Head(
                    file=head.file, size=head.size + len(line), seq=int(read["seq"]), hash=str(read["hash"])
                )
            except (ValueError, TypeError, KeyError, RecursionError):
                break
        # With half a line of a process that died, or less than was noted, it stays, and a file begins.
        self._file = file if head.size == size else None
        return head

    def _numbers(self) -> list[int]:
        return [int(match[1]) for name in os.listdir(self.folder) if (match := FILES.fullmatch(name))]

    def _path(self, number: int) -> str:
        return str(self.folder / f"audit-{number:06}.jsonl")


def _facts(file: FileFacts) -> dict[str, Any]:
    return {**({"id": file.id} if file.id else {}), "sha256": file.sha256, "bytes": file.size}


def _key_of(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        key = read_whole(path)
        if len(key) == _KEY_BYTES:
            return key
        raise ValueError(f"{path.name} is not the key that was made here; restore it, or move it away")
    key = secrets.token_bytes(_KEY_BYTES)
    write_whole(path, key)
    return key
