"""The index of a local store: one SQLite file that says which artifacts there are.

It is made from the journals of the areas, and is made anew where it is missing or damaged. A change is in
the journal, on disk, before the index has it. So the index itself need not be waited for: what a power cut
takes from it, or an earlier copy of it lacks, is read on from there when the area is next asked for.

A connection lives for one operation, so threads and processes need no agreement beyond SQLite's own, but for
one: each operation holds a shared lock on the store's folder, so that no index is taken away under it.
Changes begin immediately: two writers wait for each other at the start, and neither fails half-way.

Source: sqlite.org, "Write-Ahead Logging", "Transaction", "PRAGMA synchronous", "PRAGMA user_version" and "How
To Corrupt An SQLite Database File"; flock(2); `docs/decisions/0023-a-journal-beside-the-bytes.md`.
"""

import contextlib
import errno
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from runner.store.local.following import JOURNALS, Follower
from runner.store.local.index_copy import copied
from runner.store.local.journal import Journal
from runner.store.local.objects import Objects
from runner.store.local.row import SCHEMA, Row
from runner.store.local.rows import Rows
from runner.system import locks
from runner.system.state_files import sync_folder

__all__ = ["Index", "IndexMadeAnew", "fault_in"]

_log = logging.getLogger(__name__)

_VERSION = 3
_BUSY_S = 30.0
_LOOK_S = 0.01
_ATTEMPTS = 8
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_COMPANIONS = ("-wal", "-shm")
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


class IndexMadeAnew(sqlite3.DatabaseError):
    """The index was damaged and has been made anew from the journals: what was tried may be tried again."""


@dataclass(frozen=True, slots=True)
class Index:
    """The index file.

    Attributes:
        root: The folder of the store; made on first use, with the index in it, readable for its owner only.
        unwritten: Whether nothing may be written, even to read; then it is read from a copy in memory, and
            journals are not followed.
    """

    root: Path
    unwritten: bool = False

    @property
    def path(self) -> Path:
        """Return where the index is."""
        return self.root / "index.sqlite"

    @contextmanager
    def read(self, areas: Iterable[str] = ()) -> Iterator[Rows]:
        """Look at the rows.

        Args:
            areas: The areas that are asked for: what their journals say more than the index is read first,
                unless another process is writing just now.

        Raises:
            IndexMadeAnew: It was damaged.
            sqlite3.Error: The index cannot be read.
            OSError: The journal of an area cannot be read.
        """
        if self.unwritten:
            with copied(self.path) as connection:
                yield Rows(connection)
            return
        with self._connected() as connection:
            follower = Follower(connection, self.root)
            if any(map(follower.is_behind, areas := list(areas))):
                _try_to_follow(follower, areas)
            with _transaction(connection, "BEGIN"):
                yield Rows(connection)

    @contextmanager
    def change(self, *areas: str) -> Iterator[Rows]:
        """Change rows of some areas: all at the end of the block, or none if it raises. One writer at a time.

        Raises:
            IndexMadeAnew: It was damaged; nothing was changed.
            sqlite3.Error: The index cannot be written.
            OSError: The journal of an area cannot be read or written.
        """
        with self._connected() as connection:
            # A note of bytes to come may stand behind what was followed, and stays whatever happens.
            written: list[tuple[Journal, int]] = []
            try:
                with _transaction(connection, "BEGIN IMMEDIATE"):
                    follower, rows = Follower(connection, self.root), Rows(connection)
                    for area in areas:
                        follower.follow(area)
                    yield rows
                    written += self._write_down(follower, rows)
            except BaseException:
                for journal, end in written:
                    journal.cut(end)
                raise

    def follow(self, area: str) -> None:
        """Bring the rows of an area and its journal together, if they are not.

        Raises:
            IndexMadeAnew: The index was damaged.
            sqlite3.Error: The index cannot be read or changed.
            OSError: The journal cannot be read or written.
        """
        with self._connected() as connection:
            follower = Follower(connection, self.root)
            mark, known = Journal(self.root, area).mark(), follower.known(area)
            if known is None or known.mark != mark:
                with _transaction(connection, "BEGIN IMMEDIATE"):
                    follower.follow(area)

    def check(self) -> None:
        """Read all of the index, and make it anew if that finds it damaged.

        Raises:
            IndexMadeAnew: It was.
            sqlite3.Error: The index cannot be read.
        """
        with self._connected() as connection:
            fault = fault_in(connection)
            if fault is not None:
                raise _damage(fault)

    def _write_down(self, follower: Follower, rows: Rows) -> list[tuple[Journal, int]]:
        """Have the changes in the journals, on disk; return the journals with where they ended before."""
        written: list[tuple[Journal, int]] = []
        by_area: dict[str, list[tuple[Row, bool]]] = {}
        for row, gone in rows.changes:
            by_area.setdefault(row.area, []).append((row, gone))
        try:
            for area, changes in by_area.items():
                journal = Journal(self.root, area)
                before = journal.mark() or follower.follow(area)
                end = journal.append(changes)
                written.append((journal, before.end))
                follower.note(area, replace(before, end=end))
        except BaseException:
            for journal, end in written:
                journal.cut(end)
            raise
        return written

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        opened = None
        try:
            with self._present():
                opened = self._inode()
                with closing(self._connect()) as connection:
                    yield connection
        except sqlite3.DatabaseError as error:
            taken = opened is not None and self._inode() != opened
            if not (taken or _is_damage(error)):
                raise
            self._make(damaged=not taken)
            raise IndexMadeAnew(f"it was damaged ({error}) and has been made anew; try again") from error

    def _inode(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return None

    @contextmanager
    def _present(self) -> Iterator[None]:
        """Hold the index in its place; if there is none, it is made first."""
        for _attempt in range(_ATTEMPTS):
            if not self.path.exists():
                self._make()
            with _locked(self.root, shared=True):
                if self.path.exists():
                    yield
                    return
        raise sqlite3.OperationalError("something keeps removing it")

    def _connect(self) -> sqlite3.Connection:
        connection = _opened(self.path)
        try:
            # The journal was waited for.
            connection.execute("PRAGMA synchronous = NORMAL")
            _bring_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self, *, damaged: bool = False) -> None:
        """Make an index from the journals, and put it in place, unless another process was faster.

        Made in place, it could be opened half made; and SQLite does not wait, it fails, where one
        process reads while another switches to write-ahead logging.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.root, shared=False):
            if self.path.exists() and not (damaged and self._is_damaged()):
                return
            new = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
            try:
                self._fill(new)
                # A log that belonged to another index would be played into this one.
                self._set_aside()
                new.rename(self.path)
            finally:
                for path in (new, *_companions(new)):
                    path.unlink(missing_ok=True)
            sync_folder(self.root)

    def _is_damaged(self) -> bool:
        try:
            with closing(self._connect()) as connection:
                return fault_in(connection) is not None
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                return True
            raise

    def _set_aside(self) -> None:
        """Give what lies in the index's place another name: a person may know what it is good for."""
        there = [path for path in (self.path, *_companions(self.path)) if path.exists()]
        ending = f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
        for path in there:
            path.rename(path.with_name(f"{path.name}.{ending}"))
        if there:
            _log.warning("damaged index kept", extra={"files": [f"{path.name}.{ending}" for path in there]})

    def _fill(self, new: Path) -> None:
        # SQLite itself would make it readable for everyone, and its companions take after it.
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(_opened(new)) as connection:
            # Thrown away if this fails; a log would be written back at the end, which may fail unseen.
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute("BEGIN")
            _run(connection, SCHEMA + JOURNALS)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
            follower = Follower(connection, self.root, anew=True)
            # Each in a transaction of its own, so that one that cannot be read costs no other.
            areas = Objects(self.root).areas()
            known = [area for area in areas if Journal(self.root, area).path.exists()]
            adopted = [area for area in known if _adopted(follower, area)]
            connection.execute("PRAGMA journal_mode = WAL")
        if known:
            _log.warning("index made anew from the journals", extra={"areas": len(adopted), "of": len(known)})


def fault_in(connection: sqlite3.Connection) -> str | None:
    """Read all of an index; return what is wrong with it."""
    (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    return None if said == "ok" else str(said)


def _adopted(follower: Follower, area: str) -> bool:
    try:
        with _transaction(follower.connection, "BEGIN IMMEDIATE"):
            follower.follow(area)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Tried again whenever its user comes.
        _log.error("journal cannot be read", extra={"area": area, "reason": error.strerror})
        return False
    return True


def _try_to_follow(follower: Follower, areas: Iterable[str]) -> None:
    """Read on in the journals, unless somebody writes, and so reads on, or nobody can."""
    follower.connection.execute("PRAGMA busy_timeout = 0")
    try:
        with _transaction(follower.connection, "BEGIN IMMEDIATE"):
            for area in areas:
                if follower.is_behind(area):
                    follower.follow(area)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY):
            raise
    finally:
        follower.connection.execute(f"PRAGMA busy_timeout = {_BUSY_S * 1000:.0f}")


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _locked(folder: Path, *, shared: bool) -> Iterator[None]:
    """Hold a lock on a folder: it cannot be removed by itself, as a file for the purpose could."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _BUSY_S
        while not locks.try_lock(fd, shared=shared):
            if time.monotonic() > end:
                raise sqlite3.OperationalError(f"another process has held it for {_BUSY_S:.0f} s")
            time.sleep(_LOOK_S)
        yield
    finally:
        locks.let_go(fd)


def _opened(path: Path) -> sqlite3.Connection:
    # Never made by opening it: an empty file would look like an index without a row.
    uri = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)


def _companions(path: Path) -> list[Path]:
    return [path.with_name(path.name + ending) for ending in _COMPANIONS]


def _damage(said: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(said)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _bring_up(connection: sqlite3.Connection) -> None:
    """Bring an index of an earlier version up to this one, in one transaction."""
    if _version(connection) == _VERSION:
        return
    with _transaction(connection, "BEGIN IMMEDIATE"):
        # Another process may have done it while this one waited.
        found = _version(connection)
        if found == 0:
            raise _damage("it is empty")
        if found > _VERSION:
            raise sqlite3.DatabaseError(f"it has version {found}, and this program knows up to {_VERSION}")
        if found == 1:
            _run(connection, SCHEMA + _FROM_1)
        if found < _VERSION:
            # The journals are written when their areas are first changed, and by a sweep.
            _run(connection, JOURNALS)
            connection.execute(f"PRAGMA user_version = {_VERSION}")


def _run(connection: sqlite3.Connection, script: str) -> None:
    # Not `executescript`, which would commit first.
    for statement in script.split(";"):
        connection.execute(statement)


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
