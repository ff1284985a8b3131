"""Files of a home that count as changed by a call."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from runner.homes.changes import ChangedFile, HomeChanges
from sandbox.host.home_usage import measure


def changed(home: Path, statement: str, connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return the files, with their inodes, that a statement changes in a home."""
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    changes = HomeChanges().begin("alice", fd)
    try:
        for path in home.iterdir():
            changes.there_before(path.stat())
        connection.execute(statement)
        measure(fd, most_entries=100, seen=changes.there_after)
        return [(change.file, change.inode) for change in changes.found]
    finally:
        changes.end()
        os.close(fd)


def test_a_commit_in_a_log_changes_its_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    (tmp_path / "lone-wal").write_text("no log of any file")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE notes(body)")
        before = path.stat()

        assert changed(tmp_path, "SELECT * FROM notes", connection) == []
        found = changed(tmp_path, "INSERT INTO notes VALUES('one')", connection)

        assert found == [("notes.db", before.st_ino)]
        assert path.stat().st_ctime_ns == before.st_ctime_ns


@pytest.mark.parametrize(("head", "file"), [(bytes(8) + b"DUCK", "x.db"), (b"speech", "x.db.wal")])
def test_a_log_of_duckdb_changes_its_database(tmp_path: Path, head: bytes, file: str) -> None:
    (tmp_path / "x.db").write_bytes(head)
    (tmp_path / "x.db.wal").write_bytes(b"before")
    with closing(sqlite3.connect(":memory:")) as connection:

        def write() -> None:
            (tmp_path / "x.db.wal").write_bytes(b"written meanwhile")

        connection.create_function("write", 0, write)
        found = changed(tmp_path, "SELECT write()", connection)

    assert [name for name, _ in found] == [file]


def test_files_are_for_the_call_that_ends_last_in_any_host(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    here, elsewhere = HomeChanges(), HomeChanges()

    first = here.begin("alice", fd)
    alone = [first.is_alone]
    second = here.begin("alice", fd)
    alone.append(first.is_alone)
    last = [second.end()]
    foreign = elsewhere.begin("alice", fd)
    alone.append(first.is_alone)
    last.append(first.end())
    alone.append(foreign.is_alone)
    last.append(foreign.end())

    assert alone == [True, False, False, True]
    assert last == [False, False, True]
    os.close(fd)


def test_files_left_by_ended_calls_are_taken_once_if_they_exist(tmp_path: Path) -> None:
    fd, changes = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), HomeChanges()
    (tmp_path / "there.txt").touch()
    call = changes.begin("alice", fd)
    call.leave(ChangedFile(name, 1, 1, 1) for name in ("gone.txt", "there.txt"))
    call.end()

    later = changes.begin("alice", fd)
    assert [change.file for change in later.left] == ["gone.txt", "there.txt"]
    assert [change.file for change in later.take_left(fd)] == ["there.txt"]
    assert later.left == []
    later.end()
    os.close(fd)
