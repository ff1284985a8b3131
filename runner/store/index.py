"""The index of a local store: one SQLite file that says which artifacts there are.

A connection lives for one operation, so threads and processes need no agreement beyond SQLite's own.
Changes begin immediately: two writers wait for each other at the start, and neither fails half-way.

Source: sqlite.org, "Write-Ahead Logging", "Transaction" and "PRAGMA user_version".
"""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.store.index_copy import copied
from runner.store.objects import sync_folder
from runner.store.row import SCHEMA
from runner.store.rows import Rows

__all__ = ["Index"]

_VERSION = 2
_BUSY_S = 30.0
# Version 1 had files of users only, and `segment` for the area without `users/`.
_FROM_1 = """
INSERT INTO artifacts (
    area, session, retention, id, name, wanted, size, sha256, mime, said, created, put, used
) SELECT
    'users/' || segment, '', 'files', id, name, wanted, size, sha256, mime,
    json_object(
        'mime', mime, 'origin', origin, 'namespace', 'art', 'source', json('{}'), 'facts', json('{}'),
        'reason', NULL, 'expires', NULL
    ),
    created, ROW_NUMBER() OVER once, ROW_NUMBER() OVER once
FROM files WINDOW once AS (ORDER BY created, segment, name);
DROP TABLE files;
"""


@dataclass(frozen=True, slots=True)
class Index:
    """The index file.

    Attributes:
        path: Where it is; made on first use, readable for its owner only.
        unwritten: Whether nothing may be written, even to read; then it is read from a copy in memory.
    """

    path: Path
    unwritten: bool = False

    @contextmanager
    def read(self) -> Iterator[Rows]:
        """Look at the rows.

        Raises:
            sqlite3.Error: The index cannot be read.
        """
        if self.unwritten:
            with copied(self.path) as connection:
                yield Rows(connection)
            return
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
            connection.execute("PRAGMA synchronous = FULL")
            _bring_up(connection)
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
                _run(connection, SCHEMA)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            with contextlib.suppress(FileExistsError):
                self.path.hardlink_to(new)
        finally:
            new.unlink()
        sync_folder(self.path.parent)


def _bring_up(connection: sqlite3.Connection) -> None:
    """Bring an index of an earlier version up to this one, in one transaction."""
    if _version(connection) == _VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited.
        if _version(connection) == 1:
            _run(connection, SCHEMA + _FROM_1)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        _check(_version(connection))
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _check(found: int) -> None:
    if found != _VERSION:
        raise sqlite3.DatabaseError(f"it has version {found}, and this program knows up to {_VERSION}")


def _run(connection: sqlite3.Connection, script: str) -> None:
    # Not `executescript`, which would commit first.
    for statement in script.split(";"):
        connection.execute(statement)


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
