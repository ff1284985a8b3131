"""The index of My Files: which names a user has, and what lies behind each. One SQLite file for all users.

A connection lives for one operation, so threads and processes need no agreement beyond SQLite's own.
Changes begin immediately: two writers wait for each other at the start, and neither fails half-way.

Source: sqlite.org, "Write-Ahead Logging" and "Transaction".
"""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from runner.filenames import unique_name

__all__ = ["Index", "Row", "Rows"]

_VERSION = 1
_BUSY_S = 30.0
_ID_DIGITS = 12
_SCHEMA = """
CREATE TABLE files (
    segment TEXT NOT NULL,
    name TEXT NOT NULL,
    wanted TEXT NOT NULL,
    id TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    mime TEXT NOT NULL,
    origin TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (segment, name)
) WITHOUT ROWID;
CREATE INDEX files_by_content ON files (segment, sha256);
CREATE INDEX files_by_id ON files (segment, id);
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One name of one user. The fields are the columns, in their order.

    Attributes:
        segment: The user's segment.
        name: The name, unique for the user.
        wanted: The name that was asked for; `name` is it, or it with a number where it was taken.
        id: `art_` and the first digits of the digest; the same for equal content of one user.
        size: Length of the file in bytes.
        sha256: Hex digest of the file.
        mime: MIME type.
        origin: Where the file came from.
        created: Seconds since the epoch; when it was last put.
    """

    segment: str
    name: str
    wanted: str
    id: str
    size: int
    sha256: str
    mime: str
    origin: str
    created: float


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows, within one transaction."""

    _connection: sqlite3.Connection

    def named(self, segment: str, name: str) -> Row | None:
        """Return the row of a name."""
        return self._first("SELECT * FROM files WHERE segment = ? AND name = ?", segment, name)

    def with_id(self, segment: str, id_: str) -> Row | None:
        """Return the row of an id; of several names for the same content, the one put last."""
        newest = "SELECT * FROM files WHERE segment = ? AND id = ? ORDER BY created DESC, name LIMIT 1"
        return self._first(newest, segment, id_)

    def of(self, segment: str) -> tuple[Row, ...]:
        """Return the rows of a user, by name."""
        return tuple(self._select("SELECT * FROM files WHERE segment = ? ORDER BY name", segment))

    def refers_to(self, segment: str, sha256: str) -> bool:
        """Say whether a name stands for this content."""
        any_name = "SELECT * FROM files WHERE segment = ? AND sha256 = ? LIMIT 1"
        return self._first(any_name, segment, sha256) is not None

    def add(
        self, segment: str, wanted: str, *, size: int, sha256: str, mime: str, origin: str, created: float
    ) -> Row:
        """Add a file under the wanted name, or with a number where other content has it.

        The same content under the same wanted name is one row, whose `mime` and `created` are renewed.
        """
        again = "SELECT * FROM files WHERE segment = ? AND sha256 = ? AND ? IN (wanted, name) LIMIT 1"
        old = self._first(again, segment, sha256, wanted)
        row = Row(
            segment=segment,
            name=old.name if old else self._free_name(segment, wanted),
            wanted=old.wanted if old else wanted,
            id=old.id if old else self._id(segment, sha256),
            size=size,
            sha256=sha256,
            mime=mime,
            origin=old.origin if old else origin,
            created=created,
        )
        self._connection.execute("REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(row))
        return row

    def remove(self, segment: str, name: str) -> Row | None:
        """Remove a name; return what it stood for."""
        row = self.named(segment, name)
        self._connection.execute("DELETE FROM files WHERE segment = ? AND name = ?", (segment, name))
        return row

    def _free_name(self, segment: str, wanted: str) -> str:
        if self.named(segment, wanted) is None:
            return wanted
        return unique_name(wanted, {row.name for row in self.of(segment)})

    def _id(self, segment: str, sha256: str) -> str:
        # Twelve digits are 48 bits: too few to trust, so other content with the same ones gets more.
        clash = "SELECT * FROM files WHERE segment = ? AND id = ? AND sha256 <> ? LIMIT 1"
        ids = (f"art_{sha256[:digits]}" for digits in range(_ID_DIGITS, len(sha256) + 1, 4))
        return next(id_ for id_ in ids if self._first(clash, segment, id_, sha256) is None)

    def _first(self, query: str, *values: str) -> Row | None:
        return next(self._select(query, *values), None)

    def _select(self, query: str, *values: str) -> Iterator[Row]:
        return (Row(*columns) for columns in self._connection.execute(query, values))


@dataclass(frozen=True, slots=True)
class Index:
    """The index file.

    Attributes:
        path: Where it is; made on first use, readable for its owner only.
    """

    path: Path

    @contextmanager
    def read(self) -> Iterator[Rows]:
        """Look at the rows.

        Raises:
            sqlite3.Error: The index cannot be read.
        """
        with self._transaction("BEGIN") as rows:
            yield rows

    @contextmanager
    def change(self) -> Iterator[Rows]:
        """Change rows: all at the end of the block, or none if it raises. One writer at a time.

        Raises:
            sqlite3.Error: The index cannot be written.
        """
        with self._transaction("BEGIN IMMEDIATE") as rows:
            yield rows

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Rows]:
        with closing(self._connect()) as connection:
            connection.execute(begin)
            try:
                yield Rows(connection)
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            self._make()
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            _check_version(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self) -> None:
        """Make an empty index and link it into place, unless another process was faster.

        Made in place, it could be opened half made; and SQLite does not wait, it fails, where one
        process reads while another switches to write-ahead logging.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        # SQLite itself would make it readable for everyone, and its companions take after it.
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
            with contextlib.suppress(FileExistsError):
                self.path.hardlink_to(new)
        finally:
            new.unlink()


def _check_version(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, and this program knows {_VERSION} only")
