"""The conversion of a local store of an earlier version, with its rows of SQLite and lines of journals.

The rows of `index.sqlite` and the journals of all areas become records; bytes stay in their places. It runs
once, before the first operation, and again from its start where it was interrupted: until all records are on
disk nothing of the old store is removed. Then an empty index of a later version takes the place of the old
one, which earlier programs refuse by name.

A journal is the truth, but it may have lost its end; the index may lag behind. So of each row the one that
was put last counts.

Kept for one minor version. Source: sqlite.org, "Database File Format", section 1.3.
"""

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.errors import CallError, Code
from runner.formats.filenames import safe_name
from runner.store.areas import OwnerPlace
from runner.store.entries import Entry, key_of
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Origin, Put, Record, Retention, Scope
from runner.system.state_files import holding, sync_folder
from runner.users.usernames import user_of

__all__ = ["convert", "is_old"]

_log = logging.getLogger(__name__)

_INDEX = "index.sqlite"
_CONVERTED = 4
_VERSION_AT = 60
_COLUMNS = (
    *("area", "session", "trace", "retention", "id", "name", "wanted", "size", "sha256", "mime", "said"),
    *("created", "expires", "put"),
)
_ROWS = f"SELECT {', '.join(_COLUMNS)} FROM artifacts"  # noqa: S608 - names of ours
# Version 1 had files of users only.
_ROWS_1 = """
SELECT 'users/' || segment AS area, '' AS session, NULL AS trace, 'files' AS retention, id, name, wanted,
    size, sha256, mime, json_object('mime', mime, 'origin', origin, 'namespace', 'art', 'source', json('{}'),
    'facts', json('{}'), 'reason', NULL, 'expires', NULL) AS said, created, NULL AS expires,
    ROW_NUMBER() OVER (ORDER BY created, segment, name) AS put
FROM files
"""

# Columns of a row that may not be anything else, wherever it was read.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("session", "retention", "id", "sha256", "mime", "said"), str),
    **dict.fromkeys(("trace", "name", "wanted"), str | None),
    **dict.fromkeys(("size", "put"), int),
    "created": int | float,
    "expires": int | float | None,
}

_Row = dict[str, Any]
_Key = tuple[str, str, str]


def is_old(root: Path) -> bool:
    """Return whether a folder holds a store that is not converted."""
    try:
        fd = os.open(root / _INDEX, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return any(root.glob("*/*/journal"))
    try:
        return int.from_bytes(os.pread(fd, 4, _VERSION_AT), "big") != _CONVERTED
    finally:
        os.close(fd)


def convert(root: Path) -> None:
    """Write the records of an old store, then remove what they replace.

    Raises:
        CallError: `E_STORE`: SQLite cannot read or write, or what is there is of a later version.
        OSError: The folder cannot be read or written; nothing was removed.
    """
    # Earlier programs hold this lock while they use the index.
    with holding(root), _as_call_errors():
        if not is_old(root):
            return
        index, blobs = _Indexed.read(root / _INDEX), LocalBlobs(root)
        written = 0
        for area in sorted({*index.rows, *(area.rstrip("/") for area in blobs.areas())}):
            rows = _merged(root / area / "journal", area, index)
            for row in rows.values():
                _write(blobs, area, row)
            written += len(rows)
        # One wait for all of them; each by itself would take minutes in a large store.
        os.sync()
        _finish(root)
        _log.warning("store converted", extra={"records": written, "damaged_index": index.is_damaged})


@contextmanager
def _as_call_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CallError(Code.E_STORE, f"the index of My Files cannot be converted: {error}") from error


@dataclass(frozen=True, slots=True)
class _Indexed:
    """The rows of an index, by area."""

    rows: dict[str, dict[_Key, _Row]]
    is_damaged: bool = False

    @classmethod
    def read(cls, path: Path) -> "_Indexed":
        rows: dict[str, dict[_Key, _Row]] = {}
        if not path.exists():
            return cls({})
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
                connection.row_factory = sqlite3.Row
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version > _CONVERTED - 1:
                    raise CallError(
                        Code.E_STORE, f"the index of My Files has version {version}, later than this program"
                    )
                (state,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
                is_damaged = state != "ok"
                for row in connection.execute(_ROWS_1 if version == 1 else _ROWS) if version else ():
                    if isinstance(row["area"], str) and _is_row(dict(row)):
                        rows.setdefault(row["area"], {})[_key(row)] = dict(row)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (
                sqlite3.SQLITE_CORRUPT,
                sqlite3.SQLITE_NOTADB,
            ):
                raise
            _log.warning("index cannot be read", extra={"reason": str(error)})
            return cls(rows, is_damaged=True)
        return cls(rows, is_damaged)


def _key(row: Any) -> _Key:
    named = row["retention"] == Retention.FILES.value
    return row["session"], row["retention"], str(row["name"] if named else row["id"])


def _is_row(row: _Row) -> bool:
    if not all(isinstance(row.get(name), kind) for name, kind in _KINDS.items()):
        return False
    try:
        is_file = _metadata(row).retention is Retention.FILES
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError, AttributeError):
        return False
    return row["name"] is not None or not is_file


def _merged(path: Path, area: str, index: _Indexed) -> dict[_Key, _Row]:
    """Return the rows of an area by its journal and the index."""
    indexed = index.rows.get(area, {})
    if not path.exists():
        return indexed
    if index.is_damaged:
        indexed = {}
    latest: dict[_Key, _Row | None] = {}
    last: dict[_Key, int] = {}
    unread = 0
    for line in _lines(path):
        match line:
            case {"row": dict(row)} if _is_row(row):
                key = _key(row)
                latest[key], last[key] = {"area": area, **row}, row["put"]
            case {"gone": [str(session), str(retention), str(shown)]}:
                latest[session, retention, shown] = None
            case {"coming": _} | {"journal": 1}:
                pass
            case {"journal": version}:
                raise CallError(
                    Code.E_STORE, f"a journal of My Files has version {version}, later than this program"
                )
            case _:
                unread += 1
    if unread:
        _log.warning("journal lines cannot be read", extra={"area": area, "lines": unread})
        shutil.copyfile(path, path.with_name("journal.damaged"))
    merged = {key: row for key, row in latest.items() if row is not None}
    later = {key: row for key, row in indexed.items() if key not in last or row["put"] > last[key]}
    return merged | later


def _lines(path: Path) -> Iterator[dict[str, Any] | None]:
    with path.open("rb") as file:
        for raw in file:
            sum_, _, text = raw.removesuffix(b"\n").partition(b" ")
            entry = None
            if sum_ == b"%08x" % zlib.crc32(text):
                with contextlib.suppress(ValueError, RecursionError):
                    entry = json.loads(text)
            yield entry if isinstance(entry, dict) else None


def _write(blobs: LocalBlobs, area: str, row: _Row) -> None:
    """Write the record of a row."""
    digest = row["sha256"]
    places = (f"{area}/objects/{digest[:2]}/{digest}", f"{area}/quarantine/{digest}")
    record = Record(
        id=row["id"],
        name=row["name"] if row["name"] is None else safe_name(row["name"]),
        mime=row["mime"],
        size=row["size"],
        sha256=digest,
        # Of other areas the key tells whose they are.
        scope=Scope(
            user_id=user_of(area.removeprefix("users/")) if area.startswith("users/") else None,
            session_id=row["session"][1:] if row["session"] else None,
            trace_id=row["trace"],
        ),
        metadata=_metadata(row),
        created=datetime.fromtimestamp(row["created"], UTC),
        expires_at=_moment(row["expires"]),
    )
    found = next((key for key in places if blobs.stat(key) == row["size"]), places[0])
    entry = Entry(record=record, blob=found, put=row["put"])
    key = key_of(f"{area}/", OwnerPlace(area, row["session"]), record)
    blobs.put(key, entry.written(), durable=False)


def _metadata(row: _Row) -> Put:
    fields = json.loads(row["said"])
    return Put(
        name=row["wanted"],
        mime=fields["mime"],
        origin=Origin(fields["origin"]),
        retention=Retention(row["retention"]),
        namespace=fields["namespace"],
        source=fields["source"],
        facts=fields["facts"],
        reason=fields["reason"],
        expires_at=_moment(fields["expires"]),
    )


def _finish(root: Path) -> None:
    """Replace the old index by a mark, then remove all else; the mark makes the conversion done."""
    new = root / f"{_INDEX}.new"
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {_CONVERTED}")
    for ending in ("-wal", "-shm"):
        (root / f"{_INDEX}{ending}").unlink(missing_ok=True)
    new.replace(root / _INDEX)
    sync_folder(root)
    for journal in root.glob("*/*/journal"):
        journal.unlink()
    shutil.rmtree(root / "reserve", ignore_errors=True)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
