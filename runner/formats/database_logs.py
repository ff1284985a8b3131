"""Databases whose last changes are in a log beside them: a log of SQLite is applied, others are recognised.

A file of a tool is hostile, so no database is opened here. A write-ahead log of SQLite is a list of pages
with checksums. The pages copied here are those that SQLite itself would recover after a crash.

Source: sqlite.org, "WAL-mode File Format", "Database File Format" (section 3, the rollback journal);
duckdb.org, "Storage Versions and Format".
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "MOST_LOG_BYTES",
    "Committed",
    "LogBudget",
    "committed",
    "is_log_of_its_own",
    "is_transaction_under_way",
]

MOST_LOG_BYTES = 64 * 1024 * 1024
"""Longest log that is read, which takes 2 s; SQLite checkpoints a log to its database from 4 MB on."""

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = (0x377F0682, 0x377F0683)
_VERSION = 3007000
_PAGES = frozenset(1 << n for n in range(9, 17))
_WORD = 0xFFFFFFFF
_JOURNAL = struct.Struct(">8sI")
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
# Magic numbers with offsets: of DuckDB after a checksum; of Kùzu and its successor at the start.
_OTHERS = ((8, b"DUCK"), (0, b"KUZU"), (0, b"LBUG"))


@dataclass(slots=True, eq=False)
class LogBudget:
    """Bytes of logs that may still be read for one call: their checksums take processor time.

    Attributes:
        left_bytes: The bytes.
    """

    left_bytes: int = MOST_LOG_BYTES

    def takes(self, size: int) -> bool:
        """Subtract a log; return False if it does not fit."""
        if size > self.left_bytes:
            return False
        self.left_bytes -= size
        return True


@dataclass(frozen=True, slots=True)
class Committed:
    """The pages in a write-ahead log that its database lacks, as of the last commit.

    Attributes:
        page_bytes: Length of a page.
        size: Length of the database.
        pages: Number of each page → its offset in the log.
    """

    page_bytes: int
    size: int
    pages: Mapping[int, int]

    def write(self, log: int, database: int) -> None:
        """Write the pages of a log to a copy of its database, and truncate the copy to `size`."""
        for number, at in self.pages.items():
            page = os.pread(log, self.page_bytes, at)
            os.pwrite(database, page, (number - 1) * self.page_bytes)
        os.ftruncate(database, self.size)


def committed(log: int) -> Committed | None:
    """Return the contents of an SQLite write-ahead log; None if it is empty, or not such a log."""
    header = os.pread(log, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return None
    magic, version, page_bytes, _, *salts, first, second = _HEADER.unpack(header)
    if magic not in _MAGIC or version != _VERSION or page_bytes not in _PAGES:
        return None
    order = "<>"[magic & 1]
    if _summed(header[:24], (0, 0), order) != (first, second):
        return None
    size, pages, pending = 0, dict[int, int](), dict[int, int]()
    for at, number, pages_after in _frames(log, page_bytes, tuple(salts), (first, second), order):
        pending[number] = at
        if pages_after:
            pages |= pending
            size = pages_after
            pending.clear()
    current = {number: at for number, at in pages.items() if number <= size}
    return Committed(page_bytes, size * page_bytes, current) if size else None


def is_transaction_under_way(journal: int) -> bool:
    """Return whether a rollback journal of SQLite would undo changes in its database."""
    head = os.pread(journal, _JOURNAL.size, 0)
    if len(head) < _JOURNAL.size:
        return False
    magic, count = _JOURNAL.unpack(head)
    return bool(magic == _JOURNAL_MAGIC and count > 0)


def is_log_of_its_own(database: int) -> bool:
    """Return whether a file is a database whose log `.wal` only its own library can read."""
    head = os.pread(database, 16, 0)
    return any(head[at : at + len(magic)] == magic for at, magic in _OTHERS)


def _frames(
    log: int, page_bytes: int, salts: tuple[int, ...], sums: tuple[int, int], order: str
) -> Iterator[tuple[int, int, int]]:
    """Yield the offset, the page number and, for a commit, the page count of each complete frame."""
    at = _HEADER.size
    while len(frame := os.pread(log, _FRAME.size + page_bytes, at)) == _FRAME.size + page_bytes:
        number, pages_after, *own_salts, first, second = _FRAME.unpack_from(frame)
        if number == 0 or tuple(own_salts) != salts:
            return
        sums = _summed(frame[_FRAME.size :], _summed(frame[:8], sums, order), order)
        if sums != (first, second):
            return
        yield at + _FRAME.size, number, pages_after
        at += len(frame)


def _summed(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    first, second = sums
    for one, other in zip(words, words, strict=True):
        first = (first + one + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second
