"""The audit log: JSON lines for the begin and end of each call and each act of an operator, in a hash chain.

A line ends with the SHA-256 of all of it before, and holds that of the line before as `prev`. So no line can
be changed, removed or inserted unnoticed by someone who has the last hash. Lines are only appended, to files
`audit-000001.jsonl`, `audit-000002.jsonl`, … of one folder. `head.json` beside them names the last line
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
import errno
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.errors import CallError, Code, UsageError
from runner.observation.call_record import CallRecord, FileFacts
from runner.system import locks
from runner.system.state_files import Damaged, open_lock, open_regular, read_whole, sync_folder, write_whole

__all__ = ["GENESIS", "MOST_PENDING", "AuditLog", "Head", "numbers_of", "path_of", "read_head"]

log = logging.getLogger(__name__)

GENESIS = "0" * 64
"""The `prev` of the first line of all."""

MOST_PENDING = 1000
"""Number of lines waiting for the disk at which calls are refused."""

# Beyond that, lines of refused calls and logins are counted only.
_MOST_HELD = 3 * MOST_PENDING
# Some 70,000 calls: small enough to be moved and searched, and few files a month.
_FILE_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 64 * 1024
_KEY_BYTES = 32
_HEAD_CHARS = 256
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A line of the log: number of its file, its own number and hash."""

    file: int = 0
    seq: int = 0
    hash: str = GENESIS

    @classmethod
    def of(cls, line: bytes, *, file: int | None = None) -> "Head | None":
        """Return the head that a line, or `head.json`, names; None if it is damaged."""
        try:
            read = json.loads(line)
            number = int(read["file"]) if file is None else file
            return cls(file=number, seq=int(read["seq"]), hash=str(read["hash"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def read_head(folder: Path) -> Head | None:
    """Return the content of `head.json`; None if it is missing or damaged."""
    try:
        return Head.of((folder / "head.json").read_bytes())
    except OSError:
        return None


def numbers_of(folder: Path) -> list[int]:
    """Return the numbers of a log's files, in order."""
    found = (re.fullmatch(r"audit-(\d{6,})\.jsonl", name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def path_of(folder: Path, number: int) -> Path:
    """Return the path of a log's file."""
    return folder / f"audit-{number:06}.jsonl"


class _File:
    """A file of the log, open until it is full and no line of it waits for the disk."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd

    def __del__(self) -> None:
        os.close(self.fd)

    def write(self, text: bytes, offset: int) -> None:
        """Write all of a line, or raise."""
        if os.pwrite(self.fd, text, offset) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def is_at(self, size: int) -> bool:
        """Return whether it has its name and this length."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return found.st_size == size and os.path.samestat(found, os.fstat(self.fd))

    def last_line(self) -> tuple[bytes, int]:
        """Return its last whole line, and where that ends."""
        # Blocks from the end on, joined once: half a line of a process that died may be long.
        blocks: list[bytes] = []
        start, breaks = os.fstat(self.fd).st_size, 0
        while start and breaks < 2:
            start, end = max(start - _BLOCK_BYTES, 0), start
            blocks.append(os.pread(self.fd, end - start, start))
            breaks += blocks[-1].count(b"\n")
        content = b"".join(reversed(blocks))
        end = content.rfind(b"\n") + 1
        return content[content.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end], start + end


class AuditLog:
    """The end of an audit log, to which records are added; a folder without one gets one.

    Args:
        folder: Folder of its files.
        max_bytes: Length at which a file is full, and the next one begins.

    Raises:
        UsageError: The folder cannot be used; the message says why.
    """

    def __init__(self, folder: Path, *, max_bytes: int = _FILE_BYTES) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise UsageError(
                    f"audit_dir {folder} is not this user's alone; `chown {os.geteuid()} {folder} && "
                    f"chmod 700 {folder}`, or name another folder"
                )
            self._lock = open_lock(folder / "audit.lock")
            with locks.locked(self._lock):
                self._key = _key_of(folder / "key")
            self._head_fd = open_regular(folder / "head.json", os.O_RDWR | os.O_CREAT)
        except (OSError, ValueError) as error:
            raise UsageError(f"audit_dir {folder} cannot be used: {error}; name another folder") from error
        self._head = Head()
        self._file: _File | None = None
        self._size = 0
        self._pending: deque[Mapping[str, Any]] = deque()
        self._dropped = 0
        # Lines that may not be on disk, with their offsets. Only a sync, in its thread, removes them.
        self._unsynced: list[tuple[_File, int, bytes]] = []
        self._syncing = threading.Lock()
        # Why lines cannot be written or synced now.
        self._faults: dict[str, str] = {}

    @property
    def fault(self) -> str | None:
        """Return why records cannot be written now; None while they can."""
        unsynced = self._faults.get("sync")
        worded = unsynced and f"its disk does not keep what was written ({unsynced})"
        return self._faults.get("write") or worded

    @property
    def pending(self) -> int:
        """Return the number of records that wait to be written, or to be written again."""
        return len(self._pending) + (len(self._unsynced) if "sync" in self._faults else 0)

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

    def begin(self, facts: Mapping[str, str], arguments: object) -> str:
        """Add the first line of a call, and return the digest of its arguments.

        Args:
            facts: Content of the line: `call`, its id, `user`, `method`, `tool`.
            arguments: Arguments from the client.
        """
        digest = self.digest(arguments)
        self.add({"kind": "begin", **facts, "arguments": digest})
        return digest

    def calls_ended(self, calls: Iterable[tuple[CallRecord, str]]) -> None:
        """Add the last lines of calls, each with the digest of its arguments."""
        for call, digest in calls:
            self._hold(
                {
                    "kind": "call",
                    "call": call.id,
                    "user": call.user,
                    "method": call.method,
                    "tool": call.tool,
                    "outcome": call.outcome,
                    "elapsed_ms": call.elapsed_ms,
                    "arguments": digest,
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
        with self._reported("write"), locks.locked(self._lock):
            self._write()

    def _write(self) -> None:
        """Write all pending records; the caller holds the lock."""
        if read_head(self.folder) != self._head:
            # Another process has written meanwhile, perhaps to a later file.
            self._file = None
        try:
            while self._pending:
                file = self._find_end()
                record = {"seq": self._head.seq + 1, **self._pending[0], "prev": self._head.hash}
                body = _COMPACT.encode(record)[:-1].encode()
                digest = hashlib.sha256(body).hexdigest()
                text = b'%b,"hash":"%b"}\n' % (body, digest.encode())
                try:
                    file.write(text, self._size)
                except OSError:
                    # Ours alone, under the lock: half a line would be read as a damaged one.
                    os.ftruncate(file.fd, self._size)
                    raise
                self._unsynced.append((file, self._size, text))
                self._size += len(text)
                self._head = Head(file=self._head.file, seq=self._head.seq + 1, hash=digest)
                self._pending.popleft()
        finally:
            # Of constant length, so that it is overwritten in one piece. The lines are in the log whatever
            # becomes of this: the next process finds the end without it.
            with contextlib.suppress(OSError):
                head = json.dumps(asdict(self._head)).ljust(_HEAD_CHARS)
                os.pwrite(self._head_fd, f"{head}\n".encode(), 0)

    def _find_end(self) -> _File:
        """Return the file that takes the next line, and set the head to the line before.

        Other processes write too, may die while they do, and files may be moved.
        """
        if self._file is not None and self._size < self.max_bytes and self._file.is_at(self._size):
            return self._file
        self._file, self._head = None, read_head(self.folder) or Head()
        numbers = numbers_of(self.folder)
        for number in reversed(numbers):
            try:
                path = path_of(self.folder, number)
                file = _File(path, open_regular(path, os.O_RDWR))
            except Damaged:
                # Something else has that name: it stays, and a file begins behind it.
                continue
            line, end = file.last_line()
            last = Head.of(line, file=number)
            if last is None:
                continue
            if last.seq >= self._head.seq:
                self._head = last
                # With half a line of a process that died, it stays, and a file begins.
                if number == numbers[-1] and end < self.max_bytes and file.is_at(end):
                    self._file, self._size = file, end
            break
        if self._file is None:
            number = max([self._head.file, *numbers]) + 1
            path = path_of(self.folder, number)
            self._file = _File(path, open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            self._head, self._size = Head(file=number, seq=self._head.seq, hash=self._head.hash), 0
        return self._file

    def sync(self) -> None:
        """Wait until written lines are on disk; also in a thread, while lines are added.

        After a failure they are written again at the next time: the kernel takes lost pages for written.
        """
        with self._syncing, self._reported("sync"):
            lines = tuple(self._unsynced)
            for file, offset, text in lines if "sync" in self._faults else ():
                file.write(text, offset)
            for fd in {file.fd for file, _, _ in lines}:
                os.fdatasync(fd)
            if lines:
                # A file may be new.
                sync_folder(self.folder)
            del self._unsynced[: len(lines)]

    @contextmanager
    def _reported(self, act: str) -> Iterator[None]:
        """Log the first of several failures of the disk, and the success after them."""
        facts = {"folder": str(self.folder), "act": act}
        try:
            yield
        except OSError as error:
            if act not in self._faults:
                log.error("audit log failed", extra={**facts, "problem": error.strerror})  # noqa: TRY400
            self._faults[act] = error.strerror or "unknown"
        else:
            if self._faults.pop(act, None) is not None:
                log.warning("audit log recovered", extra=facts)

    def close(self) -> None:
        """Write and sync as far as the disk takes it, and close the files."""
        if self._lock < 0:
            return
        self.flush()
        if self._pending:
            log.error("audit log records lost", extra={"count": len(self._pending)})
        self.sync()
        if self._unsynced:
            log.error("audit log lines not synced", extra={"count": len(self._unsynced)})
        os.close(self._head_fd)
        os.close(self._lock)
        self._unsynced.clear()
        self._file, self._head_fd, self._lock = None, -1, -1


def _facts(file: FileFacts) -> dict[str, Any]:
    return {**({"id": file.id} if file.id else {}), "sha256": file.sha256, "bytes": file.size}


def _key_of(path: Path) -> bytes:
    if not os.path.lexists(path):
        write_whole(path, secrets.token_bytes(_KEY_BYTES))
    key = read_whole(path)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path.name} is not the key that was made here; restore it, or move it away")
    return key
