"""Verification of an audit log: every line whole, in order, and chained to the one before.

Source: `docs/operating.md`, "Audit log".
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.observation.audit_log import FILES, GENESIS, read_head

__all__ = ["AuditVerdict", "verify"]

_END = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n')
_END_BYTES = len(b',"hash":""}\n') + 64
_MOST_FAULTS = 20
_MOST_OPEN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """Findings of a verification.

    Attributes:
        records: How many lines there are that are as they were written.
        first: Number of the first of them; 0 where there is none.
        last: Number of the last.
        hash: The hash of the last; with it, kept elsewhere, nothing before it can be changed unnoticed.
        open_calls: Calls with a `begin` and no end, by id, the last 100, as `USER TOOL, began TIME`: they run
            now, or their host was killed.
        notes: What is no fault, but worth knowing.
        faults: What is not as it was written, the first 20.
    """

    records: int
    first: int
    last: int
    hash: str
    open_calls: Mapping[str, str]
    notes: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether nothing was found that is not as it was written."""
        return not self.faults


def verify(folder: Path, *, expected: str | None = None) -> AuditVerdict:
    """Check an audit log.

    Args:
        folder: Where its files are.
        expected: The hash of a record that must be in it, as an earlier verdict named it.

    Raises:
        UsageError: There is no audit log in the folder, or it cannot be read.
    """
    try:
        return _Chain().read(folder, expected)
    except OSError as error:
        raise UsageError(f"the audit log in {folder} cannot be read: {error}") from error


class _Chain:
    def __init__(self) -> None:
        self._records = self._first = self._last = 0
        self._hash = GENESIS
        self._hashes: set[str] = set()
        self._open: dict[str, str] = {}
        self._notes: list[str] = []
        self._faults: list[str] = []

    def read(self, folder: Path, expected: str | None) -> AuditVerdict:
        files = sorted((int(match[1]), path) for path, match in _named(folder))
        if not files:
            raise UsageError(f"there is no audit log in {folder}; is it the setting audit_dir?")
        for index, (number, path) in enumerate(files):
            if index and number != files[index - 1][0] + 1:
                self._fault(f"a file is missing before {path.name}")
            self._file(path, is_last=index == len(files) - 1)
        head = read_head(folder)
        if head is None:
            self._notes.append("head.json is missing, so records missing at the end would not be noticed")
        elif (head.seq, head.hash) != (self._last, self._hash) and head.seq >= self._last:
            self._fault(f"the log ends with record {self._last}, and record {head.seq} was the last written")
        for path in sorted(folder.glob("under-way-*.notices")):
            self._notes.append(
                f"{path.name} was written by an earlier version: if that host was killed, its lines are "
                "calls without a record; keep it with the log, or remove it"
            )
        if expected is not None and expected not in self._hashes:
            self._fault(f"no record has the expected hash {expected}")
        return AuditVerdict(
            records=self._records,
            first=self._first,
            last=self._last,
            hash=self._hash,
            open_calls=dict(list(self._open.items())[-_MOST_OPEN:]),
            notes=tuple(self._notes),
            faults=tuple(self._faults[:_MOST_FAULTS]),
        )

    def _file(self, path: Path, *, is_last: bool) -> None:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                where = f"{path.name} line {number}"
                if not line.endswith(b"\n"):
                    # Only a process that died in the middle of it leaves that, and the next file goes on.
                    told = "nothing follows" if is_last else "the next file goes on"
                    self._notes.append(f"{where} was cut short by the end of a process; {told}")
                else:
                    self._line(where, line)

    def _line(self, where: str, line: bytes) -> None:
        body, end = line[:-_END_BYTES], _END.fullmatch(line[-_END_BYTES:])
        if end is None:
            return self._fault(f"{where} is not a record")
        digest = hashlib.sha256(body).hexdigest()
        if digest != end[1].decode():
            return self._fault(f"{where} is not what was written: its hash does not fit")
        said = _read(body)
        seq, before, call = said.get("seq"), said.get("prev"), str(said.get("call"))
        if type(seq) is not int:
            return self._fault(f"{where} is not a record")
        if said.get("kind") == "begin":
            self._open[call] = f"{said.get('user')} {said.get('tool')}, began {said.get('time')}"
        else:
            self._open.pop(call, None)
        if not self._records:
            self._first = seq
            if before != GENESIS:
                self._notes.append(f"the log begins with record {seq}: the files before are not here")
        elif before != self._hash:
            self._fault(f"{where}: record {seq} does not follow record {self._last}")
        self._records += 1
        self._last, self._hash = seq, digest
        self._hashes.add(digest)
        return None

    def _fault(self, told: str) -> None:
        self._faults.append(told)


def _read(body: bytes) -> dict[str, Any]:
    """Return the content of a record; nothing for another line, whose hash may be right even so."""
    try:
        said = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _named(folder: Path) -> Iterator[tuple[Path, "re.Match[str]"]]:
    for path in folder.iterdir():
        match = FILES.fullmatch(path.name)
        if match:
            yield path, match
