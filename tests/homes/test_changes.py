"""Files of a home that count as changed by a call."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from runner.homes.changes import Changes
from sandbox.host.home_usage import measure

pytestmark = pytest.mark.anyio


async def changed(home: Path, statement: str, connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return the files, with their inodes, that a statement changes in a home."""
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    changes = Changes()
    try:
        await changes.begin(fd)
        for path in home.iterdir():
            changes.there_before(path.stat())
        connection.execute(statement)
        measure(fd, most_entries=100, seen=changes.there_after)
        return [(change.file, change.inode) for change in changes.found]
    finally:
        changes.close()
        os.close(fd)


async def test_a_commit_in_a_log_changes_its_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    (tmp_path / "lone-wal").write_text("no log of any file")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE notes(body)")
        before = path.stat()

        assert await changed(tmp_path, "SELECT * FROM notes", connection) == []
        found = await changed(tmp_path, "INSERT INTO notes VALUES('one')", connection)

        assert found == [("notes.db", before.st_ino)]
        assert path.stat().st_ctime_ns == before.st_ctime_ns


@pytest.mark.parametrize(("head", "file"), [(bytes(8) + b"DUCK", "x.db"), (b"speech", "x.db.wal")])
async def test_a_log_of_duckdb_changes_its_database(tmp_path: Path, head: bytes, file: str) -> None:
    (tmp_path / "x.db").write_bytes(head)
    (tmp_path / "x.db.wal").write_bytes(b"before")
    with closing(sqlite3.connect(":memory:")) as connection:

        def write() -> None:
            (tmp_path / "x.db.wal").write_bytes(b"written meanwhile")

        connection.create_function("write", 0, write)
        found = await changed(tmp_path, "SELECT write()", connection)

    assert [name for name, _ in found] == [file]
