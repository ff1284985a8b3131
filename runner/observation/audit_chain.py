"""Verification of an audit log: every line whole, in order, and chained to the one before.

Source: `docs/operating.md`, "Audit log".
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.observation.audit_log import GENESIS, numbers_of, path_of, read_head

__all__ = ["AuditVerdict", "verify"]

_LINE = re.compile(rb'(.*),"hash":"([0-9a-f]{64})"\}\n', re.DOTALL)
_MOST_FAULTS = 20
_MOST_OPEN = 100


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
    hash: str = GENESIS
    open_calls: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Return whether all lines are as they were written."""
        return not self.faults


def verify(folder: Path, *, expected: str | None = None) -> AuditVerdict:
    """Check an audit log.

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
        match = _LINE.fullmatch(line)
        body, digest = (b"", "") if match is None else (match[1], match[2].decode())
        if match is not None and hashlib.sha256(body).hexdigest() != digest:
            found.faults.append(f"{where} is not what was written: its hash does not fit")
            continue
        record = _record(body)
        seq, call = record.get("seq"), str(record.get("call"))
        if type(seq) is not int:
            found.faults.append(f"{where} is not a record")
            continue
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
    head = read_head(folder)
    if head is None:
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
        numbers = numbers_of(folder)
        if not numbers:
            raise UsageError(f"there is no audit log in {folder}; is it the setting audit_dir?")
        for before, number in zip([numbers[0] - 1, *numbers], numbers, strict=False):
            path = path_of(folder, number)
            if number != before + 1:
                faults.append(f"a file is missing before {path.name}")
            with path.open("rb") as lines:
                for index, line in enumerate(lines, 1):
                    yield f"{path.name} line {index}", line
    except OSError as error:
        raise UsageError(f"the audit log in {folder} cannot be read: {error}") from error


def _record(body: bytes) -> dict[str, Any]:
    """Return the content of a record; nothing for another line, whose hash may be right even so."""
    try:
        record = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
