"""The audit log: JSON lines for the start and end of each call and each act of an operator, in a hash chain.

Each line ends with the SHA-256 of its preceding bytes, and holds the hash of the previous line as `prev`. So
the last hash reveals any line that was changed, removed or inserted. Lines are only appended, to files
`audit-000001.jsonl`, `audit-000002.jsonl`, … of one folder. `head.json` beside them names the last line
written, which reveals lines missing at the end. A lock orders the lines of several processes.

A call has two lines: `begin`, written while its worker runs and before its answer, and `call`, written within
a tenth of a second after it. A killed host leaves the first without the second. Both are on disk within a
second; no call and no event loop waits for that. A partial line of a process that died stays, and the log
continues in the next file. The kernel reports lost pages once, and then treats them as written. So after a
failed sync, an `unsynced` line counts the lines that may be lost, and calls are refused until one succeeds.

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
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from runner.errors import CallError, Code, UsageError
from runner.observation.call_record import CallRecord
from runner.system import locks
from runner.system.state_files import Damaged, open_lock, open_regular, read_whole, sync_folder, write_whole

__all__ = ["MOST_PENDING", "AuditLog", "AuditVerdict", "verify"]

log = logging.getLogger(__name__)

MOST_PENDING = 1000
"""Number of lines waiting for the disk at which calls are refused."""

# The `prev` of the very first line.
_GENESIS = "0" * 64
# Above this, lines of refused calls and logins are only counted.
_MOST_HELD = 3 * MOST_PENDING
# About 70,000 calls: small enough to move and search, and few files a month.
_FILE_BYTES = 64 * 1024 * 1024
_KEY_BYTES = 32
_HEAD_BYTES = 256
_MOST_FAULTS = 20
_MOST_OPEN = 100
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


@dataclass(frozen=True, slots=True)
class _Head:
    """Position of a line, as `head.json` has it for the last: file, sequence number, hash and end offset."""

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
    return folder / f"audit-{number:06}.jsonl"


def _sealed(body: bytes) -> tuple[bytes, str]:
    """Return a line in its written form, made from its text before the hash; and the hash."""
    digest = hashlib.sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), digest


def _content(line: bytes) -> dict[str, Any]:
    """Return the content of a record; an empty dict for any other line."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and type(record.get("seq")) is int and "hash" in record:
            return record
    return {}


class _File:
    """A file of the log, open until it is full and synced."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd

    def __del__(self) -> None:
        os.close(self.fd)

    def is_at(self, size: int) -> bool:
        """Return whether its path still leads to it, and it has this size."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path, follow_symlinks=False)
            return found.st_size == size and os.path.samestat(found, os.fstat(self.fd))
        return False


class AuditLog:
    """Writer of an audit log, which it creates if the folder has none.

    Args:
        folder: Folder of its files.
        max_bytes: Size at which a file is full, and the next one begins.

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
        # The last line known to this process, and its file, to which the next one is appended.
        self._head = _Head()
        self._file: _File | None = None
        self._pending: deque[Mapping[str, Any]] = deque()
        self._dropped = 0
        # For each line that may not be on disk, its file.
        self._unsynced: deque[_File] = deque()
        # Reasons why lines cannot be written or synced now, by `write` and `sync`.
        self._faults: dict[str, str] = {}

    @property
    def fault(self) -> str | None:
        """Return the reason why records cannot be written now; None while they can."""
        return next(iter(self._faults.values()), None)

    @property
    def pending(self) -> int:
        """Return the number of records that wait to be written."""
        return len(self._pending)

    def digest(self, value: object) -> str:
        """Return the digest of a value: equal for equal values, and useless without the folder's key."""
        return "hmac-sha256:" + hmac.digest(self._key, _SORTED.encode(value).encode(), "sha256").hex()

    def check(self) -> None:
        """Refuse a call that could not be recorded.

        Raises:
            CallError: `E_STORE`: `MOST_PENDING` records wait for the disk, or the last sync failed.
        """
        if self.pending >= MOST_PENDING or "sync" in self._faults:
            raise CallError(
                Code.E_STORE,
                f"The audit log cannot be written ({self.fault}), so no further call is taken; "
                "the operator has to make room in audit_dir",
            )

    def begin(self, facts: Mapping[str, str], arguments: object) -> str:
        """Add the first line of a call, with facts about it, and return the digest of its arguments."""
        digest = self.digest(arguments)
        self.add({"kind": "begin", **facts, "arguments": digest})
        return digest

    def calls_ended(self, calls: Iterable[tuple[CallRecord, str]]) -> None:
        """Add the last lines of calls, each with the digest of its arguments."""
        self.add(*(_call_line(call, digest) for call, digest in calls))

    def add(self, *records: Mapping[str, Any]) -> None:
        """Add records; they stay pending while the disk accepts none."""
        for record in records:
            # Accepted calls never have so many lines; the number of refused ones has no bound.
            if self.pending < _MOST_HELD:
                self._pending.append(_stamped(record))
            else:
                self._dropped += 1
        self.flush()

    def flush(self) -> None:
        """Write the pending records that the disk accepts."""
        if self._dropped and self.pending < _MOST_HELD:
            count, self._dropped = self._dropped, 0
            self._pending.append(_stamped({"kind": "dropped", "count": count}))
        if self._pending and self._lock >= 0:
            with self._reported("write", "{}"), locks.locked(self._lock):
                self._write()

    def _write(self) -> None:
        """Write all pending records; the caller holds the lock."""
        known = self._head
        try:
            while self._pending:
                file, before = self._find_end()
                record = {"seq": before.seq + 1, **self._pending[0], "prev": before.hash}
                text, digest = _sealed(_COMPACT.encode(record)[:-1].encode())
                if os.pwrite(file.fd, text, before.size) < len(text):
                    # Safe under the lock. A partial line would be read as a damaged one.
                    os.ftruncate(file.fd, before.size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._unsynced.append(file)
                size = before.size + len(text)
                self._file, self._head = file, _Head(before.file, before.seq + 1, digest, size)
                self._pending.popleft()
        finally:
            # Of constant length, so that it is overwritten in one piece. If this fails, the lines are still
            # in the log: the next process finds its end without the head. Unchanged if no line was written.
            with contextlib.suppress(OSError):
                if self._head != known:
                    os.pwrite(self._head_fd, _HEAD.dump_json(self._head).ljust(_HEAD_BYTES) + b"\n", 0)

    def _find_end(self) -> tuple[_File, _Head]:
        """Return the file for the next line, and the position of the line before it, with the file's size.

        Other processes write too and may die while writing, and files may be moved.
        """
        head, file, size = self._head, self._file, 0
        if file is not None and head.size < self.max_bytes and file.is_at(head.size):
            return file, head
        head, file = max(head, _read_head(self.folder), key=lambda head: head.seq), None
        numbers = [number for number in _numbers_of(self.folder) if number >= head.file]
        # Without a head, the end is in the last file, or in the one before if a full disk left it empty.
        for number in numbers if head.seq else numbers[-2:]:
            path, start = _path_of(self.folder, number), head.size if number == head.file else 0
            head = replace(head, file=number, size=start)
            try:
                file = _File(path, open_regular(path, os.O_RDWR))
            except Damaged:
                # Not a regular file: leave it alone, and use the next number.
                file = None
                continue
            size = os.fstat(file.fd).st_size
            lines = os.pread(file.fd, max(size - start, 0), start)
            end = lines.rfind(b"\n") + 1
            last = _content(lines[lines.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end])
            if last and last["seq"] > head.seq:
                head = replace(head, seq=last["seq"], hash=str(last["hash"]))
            head = replace(head, size=start + end)
        # Begin a new file after a full one, or after a partial line of a process that died.
        if file is None or size != head.size or size >= self.max_bytes:
            head = replace(head, file=head.file + 1, size=0)
            path = _path_of(self.folder, head.file)
            file = _File(path, open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        return file, head

    def sync(self) -> None:
        """Wait until written lines are on disk; a thread may call this while lines are added."""
        files = [self._unsynced.popleft() for _ in range(len(self._unsynced))]
        if not files:
            return
        with self._reported("sync", "its disk does not keep what was written ({})"):
            try:
                for fd in {file.fd for file in files}:
                    os.fdatasync(fd)
                # The folder too, since a file may be new.
                sync_folder(self.folder)
            except OSError:
                # The next sync has this line to sync, and so detects whether the disk works again.
                self._pending.append(_stamped({"kind": "unsynced", "count": len(files)}))
                raise

    @contextmanager
    def _reported(self, act: str, fault: str) -> Iterator[None]:
        """Log the first of consecutive disk failures, and the recovery from them."""
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
        """Write and sync what the disk accepts, and close the files."""
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


def _stamped(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), **record}


def _call_line(call: CallRecord, digest: str) -> Mapping[str, Any]:
    return {
        "kind": "call",
        "call": call.id,
        "user": call.user,
        "method": call.method,
        "tool": call.tool,
        "outcome": call.outcome,
        "elapsed_ms": call.elapsed_ms,
        "arguments": digest,
        "inputs": call.inputs,
        "outputs": call.outputs,
        "policy": {"tier": call.tier, "worker": call.worker},
        "denials": [f"{operation} by {layer}" for operation, layer in call.denials],
        **({"approval": call.approval} if call.approval else {}),
        **({"generated": call.generated} if call.generated else {}),
    }


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
        records: Number of intact lines.
        first: Sequence number of the first of them; 0 if there is none.
        last: Sequence number of the last.
        hash: Hash of the last; a copy of it elsewhere reveals any later change of these lines.
        open_calls: Calls with a `begin` and no end, by id, the last 100, as `USER TOOL, began TIME`: they run
            now, or their host was killed.
        notes: Facts that are not faults.
        faults: Damaged or missing lines and files, the first 20.
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
        """Return whether all lines are intact."""
        return not self.faults


def verify(folder: Path, *, expected: str | None = None) -> AuditVerdict:
    """Check that every line of an audit log is intact, in order, and chained to the one before.

    Args:
        folder: Folder of its files.
        expected: The hash of a record that must be in it, as an earlier verdict named it.

    Raises:
        UsageError: There is no audit log in the folder, or it cannot be read.
    """
    # Read before the lines, since the log may grow meanwhile.
    found, head, is_there, has_head = AuditVerdict(), _read_head(folder), expected is None, False
    for where, line in _lines(folder, found.faults):
        record = _content(line)
        text, digest = _sealed(line.rpartition(b',"hash":"')[0])
        if not line.endswith(b"\n"):
            # Left only by a process that died while writing; the log continues in the next file.
            found.notes.append(f"{where} was cut short by the end of a process; the next file goes on")
        elif not record:
            found.faults.append(f"{where} is not a record")
        elif line != text:
            found.faults.append(f"{where} is not what was written: its hash does not fit")
        else:
            seq, call = record["seq"], str(record.get("call"))
            found.open_calls.pop(call, None)
            if record.get("kind") == "begin":
                facts = f"{record.get('user')} {record.get('tool')}, began {record.get('time')}"
                found.open_calls[call] = facts
            if record.get("prev") != found.hash:
                if found.records:
                    found.faults.append(f"{where}: record {seq} does not follow record {found.last}")
                else:
                    found.notes.append(f"the log begins with record {seq}: the files before are not here")
            found.first, found.last, found.hash = found.first or seq, seq, digest
            found.records += 1
            is_there = is_there or digest == expected
            has_head = has_head or (seq, digest) == (head.seq, head.hash)
    if not head.seq:
        found.notes.append("head.json is missing, so records missing at the end would not be noticed")
    elif not has_head and head.seq >= found.first:
        found.faults.append(f"the log ends with record {found.last}, but record {head.seq} was written last")
    if not is_there:
        found.faults.append(f"no record has the expected hash {expected}")
    del found.faults[_MOST_FAULTS:]
    found.open_calls = dict(list(found.open_calls.items())[-_MOST_OPEN:])
    return found


def _lines(folder: Path, faults: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each line with its place; record each gap in the file numbers as a fault."""
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
