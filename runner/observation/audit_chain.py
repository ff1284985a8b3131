"""Whether an audit log is as it was written: every line whole, in order, and bound to the one before.

Source: `docs/observation.md`, "The audit log".
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UsageError
from runner.observation.audit_log import FILES, GENESIS, HOST_ENDED, read_head
from runner.observation.call_notices import left_notices

__all__ = ["AuditVerdict", "verify"]

_END = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n')
_END_BYTES = len(b',"hash":""}\n') + 64
_MOST_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """What was found.

    Attributes:
        records: How many lines there are that are as they were written.
        first: Number of the first of them; 0 where there is none.
        last: Number of the last.
        hash: The hash of the last; with it, kept elsewhere, nothing before it can be changed unnoticed.
        notes: What is no fault, but worth knowing.
        faults: What is not as it was written, the first 20.
    """

    records: int
    first: int
    last: int
    hash: str
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
        with left_notices(folder) as left:
            calls = sum(len(host.calls) for host in left)
        if calls:
            self._notes.append(
                f"{calls} calls of a host that has ended are not recorded yet; the next one records them, "
                f"with the outcome `{HOST_ENDED}`"
            )
        if expected is not None and expected not in self._hashes:
            self._fault(f"no record has the expected hash {expected}")
        return AuditVerdict(
            records=self._records,
            first=self._first,
            last=self._last,
            hash=self._hash,
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
        seq, before = _numbered(body)
        if seq is None:
            return self._fault(f"{where} is not a record")
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


def _numbered(body: bytes) -> tuple[int | None, object]:
    """Return the number of a record and what it names as the one before it; no number for what is none.

    Its hash may fit all the same: anybody can make one.
    """
    try:
        said = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None, None
    seq = said.get("seq") if isinstance(said, dict) else None
    return (seq if type(seq) is int else None), said.get("prev") if isinstance(said, dict) else None


def _named(folder: Path) -> Iterator[tuple[Path, "re.Match[str]"]]:
    for path in folder.iterdir():
        match = FILES.fullmatch(path.name)
        if match:
            yield path, match
