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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from runner.errors import CallError, Code, UsageError
from runner.observation.call_record import CallRecord, FileFacts
from runner.system import locks
from runner.system.state_files import Damaged, open_lock, open_regular, read_whole, sync_folder, write_whole

__all__ = ["MOST_PENDING", "AuditLog", "AuditVerdict", "verify"]

log = logging.getLogger(__name__)

MOST_PENDING = 1000
"""Number of lines waiting for the disk at which calls are refused."""

# The `prev` of the first line of all.
_GENESIS = "0" * 64
# Beyond that, lines of refused calls and logins are counted only.
_MOST_HELD = 3 * MOST_PENDING
# Some 70,000 calls: small enough to be moved and searched, and few files a month.
_FILE_BYTES = 64 * 1024 * 1024
_KEY_BYTES = 32
_HEAD_BYTES = 256
_MOST_FAULTS = 20
_MOST_OPEN = 100
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """A line of the log, as `head.json` names the last: its file, its own number and hash, and its end."""

    file: int = 0
    seq: int = 0
    hash: str = _GENESIS
    size: int = 0


_HEAD = TypeAdapter(_Head)


def _read_head(folder: Path) -> _Head:
    """Return the content of `head.json`; the head of an empty log if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return _HEAD.validate_json((folder / "head.json").read_bytes())
    return _Head()


def _numbers_of(folder: Path) -> list[int]:
    """Return the numbers of a log's files, in order."""
    found = (re.fullmatch(r"audit-(\d{6,})\.jsonl", name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def _path_of(folder: Path, number: int) -> Path:
    """Return the path of a log's file."""
    return folder / f"audit-{number:06}.jsonl"


def _sealed(body: bytes) -> tuple[bytes, str]:
    """Return a line without its end as it is written, and its hash."""
    digest = hashlib.sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), digest


def _content(line: bytes) -> dict[str, Any]:
    """Return the content of a record; nothing for another line."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and type(record.get("seq")) is int and "hash" in record:
            return record
    return {}


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
        with contextlib.suppress(OSError):
            found = os.stat(self.path, follow_symlinks=False)
            return found.st_size == size and os.path.samestat(found, os.fstat(self.fd))
        return False


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
        # The last line that this process knows of, and the file of it, which takes the next one.
        self._head = _Head()
        self._file: _File | None = None
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
        return next(iter(self._faults.values()), None)

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
        self.add(
            *(
                {
                    "kind": "call",
                    "call": call.id,
                    "user": call.user,
                    "method": call.method,
                    "tool": call.tool,
                    "outcome": call.outcome,
                    "elapsed_ms": call.elapsed_ms,
                    "arguments": digest,
                    "inputs": _facts(call.inputs),
                    "outputs": _facts(call.outputs),
                    "policy": {"tier": call.tier, "worker": call.worker},
                    "denials": [f"{operation} by {layer}" for operation, layer in call.denials],
                    **({"approval": call.approval} if call.approval else {}),
                    **({"generated": _facts(call.generated)} if call.generated else {}),
                }
                for call, digest in calls
            )
        )

    def add(self, *records: Mapping[str, Any]) -> None:
        """Add records; while the disk takes none, they wait."""
        for record in records:
            # Accepted calls never have so many lines; refused ones are not bounded in number.
            if self.pending < _MOST_HELD:
                self._hold(record)
            else:
                self._dropped += 1
        self.flush()

    def _hold(self, record: Mapping[str, Any]) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._pending.append({"time": stamp, **record})

    def flush(self) -> None:
        """Write pending records, as far as the disk takes them."""
        if self._dropped and self.pending < _MOST_HELD:
            count, self._dropped = self._dropped, 0
            self._hold({"kind": "dropped", "count": count})
        if not self._pending or self._lock < 0:
            return
        with self._reported("write", "{}"), locks.locked(self._lock):
            self._write()

    def _write(self) -> None:
        """Write all pending records; the caller holds the lock."""
        if _read_head(self.folder) != self._head:
            # Another process has written meanwhile, perhaps to a later file.
            self._file = None
        known = self._head
        try:
            while self._pending:
                file = self._find_end()
                record = {"seq": self._head.seq + 1, **self._pending[0], "prev": self._head.hash}
                text, digest = _sealed(_COMPACT.encode(record)[:-1].encode())
                before = self._head
                try:
                    file.write(text, before.size)
                except OSError:
                    # Ours alone, under the lock: half a line would be read as a damaged one.
                    os.ftruncate(file.fd, before.size)
                    raise
                self._unsynced.append((file, before.size, text))
                self._head = replace(before, seq=before.seq + 1, hash=digest, size=before.size + len(text))
                self._pending.popleft()
        finally:
            # Of constant length, so that it is overwritten in one piece. The lines are in the log whatever
            # becomes of this: the next process finds the end without it. One that could not be read stays.
            with contextlib.suppress(OSError):
                if self._head != known:
                    os.pwrite(self._head_fd, _HEAD.dump_json(self._head).ljust(_HEAD_BYTES) + b"\n", 0)

    def _find_end(self) -> _File:
        """Return the file that takes the next line, and set the head to the line before.

        Other processes write too, may die while they do, and files may be moved.
        """
        if self._file is not None and self._head.size < self.max_bytes and self._file.is_at(self._head.size):
            return self._file
        self._file = None
        head = max(self._head, _read_head(self.folder), key=lambda head: head.seq)
        numbers = _numbers_of(self.folder)
        # A later line than that of the head is behind it, or in the last file that has one.
        for number in reversed([number for number in numbers if number >= head.file]):
            path = _path_of(self.folder, number)
            try:
                file = _File(path, open_regular(path, os.O_RDWR))
            except Damaged:
                # Something else has that name: it stays, and a file begins behind it.
                continue
            size, start = os.fstat(file.fd).st_size, head.size if number == head.file else 0
            behind = os.pread(file.fd, max(size - start, 0), start)
            end = behind.rfind(b"\n") + 1
            last = _content(behind[behind.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end])
            if last and last["seq"] >= head.seq:
                head = _Head(file=number, seq=last["seq"], hash=str(last["hash"]), size=start + end)
            # With half a line of a process that died, it stays, and a file begins.
            if number == head.file == numbers[-1] and size == head.size < self.max_bytes:
                self._file = file
            if number == head.file:
                break
        if self._file is None:
            head = replace(head, file=max([head.file, *numbers]) + 1, size=0)
            path = _path_of(self.folder, head.file)
            self._file = _File(path, open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        self._head = head
        return self._file

    def sync(self) -> None:
        """Wait until written lines are on disk; also in a thread, while lines are added.

        After a failure they are written again at the next time: the kernel takes lost pages for written.
        """
        with self._syncing, self._reported("sync", "its disk does not keep what was written ({})"):
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
    def _reported(self, act: str, fault: str) -> Iterator[None]:
        """Log the first of several failures of the disk, and the success after them."""
        facts = {"folder": str(self.folder), "act": act}
        try:
            yield
        except OSError as error:
            if act not in self._faults:
                log.error("audit log failed", extra={**facts, "problem": error.strerror})  # noqa: TRY400
            self._faults[act] = fault.format(error.strerror)
        else:
            if self._faults.pop(act, None) is not None:
                log.warning("audit log recovered", extra=facts)

    def close(self) -> None:
        """Write and sync as far as the disk takes it, and close the files."""
        if self._lock < 0:
            return
        self.flush()
        self.sync()
        if self.pending:
            log.error("audit log records lost", extra={"count": self.pending})
        os.close(self._head_fd)
        os.close(self._lock)
        self._unsynced.clear()
        self._file, self._head_fd, self._lock = None, -1, -1


def _facts(files: Iterable[FileFacts]) -> list[dict[str, Any]]:
    return [{**({"id": one.id} if one.id else {}), "sha256": one.sha256, "bytes": one.size} for one in files]


def _key_of(path: Path) -> bytes:
    if not os.path.lexists(path):
        write_whole(path, secrets.token_bytes(_KEY_BYTES))
    key = read_whole(path)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path.name} is not the key that was made here; restore it, or move it away")
    return key


@dataclass(slots=True)
class AuditVerdict:
    """The result of a verification.

    Attributes:
        records: Number of lines that are as they were written.
        first: Number of the first of them; 0 where there is none.
        last: Number of the last.
        hash: The hash of the last; with it, kept elsewhere, nothing before it can be changed unnoticed.
        open_calls: Calls with a `begin` and no end, by id, the last 100, as `USER TOOL, began TIME`: they run
            now, or their host was killed.
        notes: Facts that are not faults.
        faults: Lines and files that are not as they were written, the first 20.
    """

    records: int = 0
    first: int = 0
    last: int = 0
    hash: str = _GENESIS
    open_calls: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Return whether all lines are as they were written."""
        return not self.faults


def verify(folder: Path, *, expected: str | None = None) -> AuditVerdict:
    """Check an audit log: every line whole, in order, and chained to the one before.

    Args:
        folder: Folder of its files.
        expected: The hash of a record that must be in it, as an earlier verdict named it.

    Raises:
        UsageError: There is no audit log in the folder, or it cannot be read.
    """
    found, is_there = AuditVerdict(), expected is None
    for where, line in _lines(folder, found.faults):
        if not line.endswith(b"\n"):
            # Only a process that died in the middle of it leaves that, and the next file goes on.
            found.notes.append(
                f"{where} was cut short by the end of a process; the next file, if any, goes on"
            )
            continue
        record = _content(line)
        if not record:
            found.faults.append(f"{where} is not a record")
            continue
        text, digest = _sealed(line.rpartition(b',"hash":"')[0])
        if line != text:
            found.faults.append(f"{where} is not what was written: its hash does not fit")
            continue
        seq, call = record["seq"], str(record.get("call"))
        if record.get("kind") == "begin":
            found.open_calls[call] = f"{record.get('user')} {record.get('tool')}, began {record.get('time')}"
        else:
            found.open_calls.pop(call, None)
        if record.get("prev") != found.hash:
            if found.records:
                found.faults.append(f"{where}: record {seq} does not follow record {found.last}")
            else:
                found.notes.append(f"the log begins with record {seq}: the files before are not here")
        found.first, found.last, found.hash = found.first if found.records else seq, seq, digest
        found.records += 1
        is_there = is_there or digest == expected
    head = _read_head(folder)
    if not head.seq:
        found.notes.append("head.json is missing, so records missing at the end would not be noticed")
    elif (head.seq, head.hash) != (found.last, found.hash) and head.seq >= found.last:
        found.faults.append(
            f"the log ends with record {found.last}, and record {head.seq} was the last written"
        )
    if not is_there:
        found.faults.append(f"no record has the expected hash {expected}")
    del found.faults[_MOST_FAULTS:]
    found.open_calls = dict(list(found.open_calls.items())[-_MOST_OPEN:])
    return found


def _lines(folder: Path, faults: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each line with its place; a file that is missing in between is a fault."""
    try:
        numbers = _numbers_of(folder)
        if not numbers:
            raise UsageError(f"there is no audit log in {folder}; is it the setting audit_dir?")
        for before, number in zip([numbers[0] - 1, *numbers], numbers, strict=False):
            path = _path_of(folder, number)
            if number != before + 1:
                faults.append(f"a file is missing before {path.name}")
            with path.open("rb") as lines:
                for index, line in enumerate(lines, 1):
                    yield f"{path.name} line {index}", line
    except OSError as error:
        raise UsageError(f"the audit log in {folder} cannot be read: {error}") from error
