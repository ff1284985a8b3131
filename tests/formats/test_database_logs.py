"""Write-ahead logs of SQLite: what is copied from one is what SQLite recovers from it."""

import os
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from runner.formats.database_logs import (
    Committed,
    committed,
    is_log_of_its_own,
    is_transaction_under_way,
)


def connect(path: Path, page_bytes: int = 4096) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def read(log: Path) -> Committed | None:
    fd = os.open(log, os.O_RDONLY)
    try:
        return committed(fd)
    finally:
        os.close(fd)


def applied(path: Path, made: Path) -> list[tuple[object, ...]]:
    """Return the rows of a copy to which the log was applied, by a connection that has no log."""
    shutil.copyfile(path, made)
    pages = read(log_of(path))
    if pages is not None:
        with log_of(path).open("rb") as log, made.open("r+b") as copy:
            pages.write(log.fileno(), copy.fileno())
        assert made.stat().st_size == pages.size
    with closing(sqlite3.connect(f"{made.as_uri()}?immutable=1", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute("SELECT body FROM notes ORDER BY rowid").fetchall()


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_committed_pages_make_the_database_whole(tmp_path: Path, page_bytes: int) -> None:
    path = tmp_path / "notes.db"
    with closing(connect(path, page_bytes)) as connection:
        connection.execute("CREATE TABLE notes(body)")
        for n in range(50):
            connection.execute("INSERT INTO notes VALUES(?)", (f"{n} " + "ü" * 500,))

        rows = connection.execute("SELECT body FROM notes ORDER BY rowid").fetchall()
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as without_log,
            pytest.raises(sqlite3.OperationalError, match="no such table"),
        ):
            without_log.execute("SELECT body FROM notes")
        assert applied(path, tmp_path / "made.db") == rows


def test_uncommitted_pages_in_a_log_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    with closing(connect(path)) as connection:
        connection.execute("CREATE TABLE notes(body)")
        connection.execute("INSERT INTO notes VALUES('one')")
        before = log_of(path).stat().st_size
        connection.execute("PRAGMA cache_size = 2")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO notes VALUES(?)", [("x" * 3000,)] * 200)

        assert log_of(path).stat().st_size > before
        assert applied(path, tmp_path / "made.db") == [("one",)]


def test_a_shrunk_database_and_a_restarted_log_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    with closing(connect(path)) as connection:
        connection.execute("CREATE TABLE notes(body)")
        connection.executemany("INSERT INTO notes VALUES(?)", [("x" * 3000,)] * 100)
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.execute("DELETE FROM notes WHERE rowid > 1")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.execute("INSERT INTO notes VALUES('last')")

        # Behind the new frames stand those of before, with other salts.
        pages = read(log_of(path))
        assert pages is not None
        assert log_of(path).stat().st_size > 32 + len(pages.pages) * 2 * 4120
        assert applied(path, tmp_path / "made.db") == [("x" * 3000,), ("last",)]


@pytest.mark.parametrize("cut", [1, 24, 4000, 4120])
def test_a_torn_last_commit_is_left_out(tmp_path: Path, cut: int) -> None:
    path, log = tmp_path / "notes.db", tmp_path / "notes.db-wal"
    with closing(connect(path)) as connection:
        connection.execute("CREATE TABLE notes(body)")
        connection.execute("INSERT INTO notes VALUES('one')")
        connection.execute("INSERT INTO notes VALUES('two')")
        whole = log.read_bytes()
        assert applied(path, tmp_path / "whole.db") == [("one",), ("two",)]
        for torn in (whole[:-cut], whole[:-cut] + bytes(cut)):
            log.write_bytes(torn)
            assert applied(path, tmp_path / "made.db") == [("one",)]


@pytest.mark.parametrize(
    "content", [b"", b"x" * 31, b"x" * 100_000, struct.pack(">8I", 0x377F0682, 3007000, 4096, 0, 1, 2, 3, 4)]
)
def test_invalid_database_log_holds_nothing(tmp_path: Path, content: bytes) -> None:
    log = tmp_path / "notes.db-wal"
    log.write_bytes(content)

    assert read(log) is None


def test_a_journal_counts_once_its_database_has_changed(tmp_path: Path) -> None:
    path, journal = tmp_path / "notes.db", tmp_path / "notes.db-journal"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE notes(body)")
        connection.execute("PRAGMA cache_size = 2")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO notes VALUES('one')")
        with journal.open("rb") as journal_file:
            assert not is_transaction_under_way(journal_file.fileno())
        connection.executemany("INSERT INTO notes VALUES(?)", [("x" * 3000,)] * 200)
        with journal.open("rb") as spilled:
            assert is_transaction_under_way(spilled.fileno())


@pytest.mark.parametrize(
    ("head", "is_known"), [(b"\0" * 8 + b"DUCK", True), (b"KUZU", True), (b"DUCK", False), (b"", False)]
)
def test_databases_with_a_log_of_their_own_are_known(tmp_path: Path, head: bytes, is_known: bool) -> None:
    (tmp_path / "x").write_bytes(head)
    with (tmp_path / "x").open("rb") as file:
        assert is_log_of_its_own(file.fileno()) is is_known
