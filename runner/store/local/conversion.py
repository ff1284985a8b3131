"""The conversion of a local store of an earlier version, from SQLite rows and journal lines.

The rows of `index.sqlite` and the journals of all areas become records; bytes stay in their places. It runs
once, before the first operation, and starts over if it was interrupted: nothing of the old store is removed
until all records are on disk. Then an empty index of a later version replaces the old one; earlier programs
refuse that version explicitly.

A journal is authoritative, but may have lost its tail; the index may lag behind. So of each row the
version that was put last counts.

Kept for one minor version. Source: sqlite.org, "Database File Format", section 1.3.
"""

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.errors import CallError, Code
from runner.formats.filenames import safe_name
from runner.store.blobs import Blobs
from runner.store.entries import DamagedEntry, Entry, OwnerPlace, key_of
from runner.system.state_files import holding, sync_folder
from runner.users.usernames import user_of

__all__ = ["convert", "is_old"]

_log = logging.getLogger(__name__)

_INDEX = "index.sqlite"
_CONVERTED = 4
_VERSION_AT = 60
_ROWS = "SELECT * FROM artifacts"
# Version 1 had files of users only.
_ROWS_1 = """
SELECT 'users/' || segment AS area, '' AS session, NULL AS trace, 'files' AS retention, id, name, wanted,
    size, sha256, mime, json_object('mime', mime, 'origin', origin, 'namespace', 'art', 'source', json('{}'),
    'facts', json('{}'), 'reason', NULL, 'expires', NULL) AS said, created, NULL AS expires,
    ROW_NUMBER() OVER (ORDER BY created, segment, name) AS put
FROM files
"""
_UNREADABLE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

# Session, retention, and the name of a file or id of an observation.
_Key = tuple[str, str, str]


def is_old(root: Path) -> bool:
    """Return whether a folder holds an unconverted store."""
    try:
        fd = os.open(root / _INDEX, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return any(root.glob("*/*/journal"))
    try:
        return int.from_bytes(os.pread(fd, 4, _VERSION_AT), "big") != _CONVERTED
    finally:
        os.close(fd)


def convert(root: Path, blobs: Blobs, put: Callable[[str, bytes], object]) -> None:
    """Write the records of an old store, then remove what they replace.

    Args:
        root: Its folder.
        blobs: The blobs in it.
        put: Writes a small blob, which need not be durable yet.

    Raises:
        CallError: `E_STORE`: SQLite cannot read or write, or the store has a later version.
        OSError: The folder cannot be read or written; nothing was removed.
    """
    written = 0
    # Earlier programs hold this lock while they use the index.
    with holding(root):
        if not is_old(root):
            return
        try:
            indexed, is_damaged = _indexed(root / _INDEX)
            for area in sorted({*indexed, *(area.rstrip("/") for area in blobs.areas())}):
                entries = _merged(root / area / "journal", area, indexed.get(area, {}), is_damaged=is_damaged)
                for entry in entries.values():
                    apart = f"{area}/quarantine/{entry.record.sha256}"
                    if blobs.stat(entry.blob) != entry.record.size == blobs.stat(apart):
                        entry = replace(entry, blob=apart)
                    put(entry.key, entry.written())
                written += len(entries)
            # One sync for all of them; one for each would take minutes in a large store.
            os.sync()
            _finish(root)
        except sqlite3.Error as error:
            raise CallError(Code.E_STORE, f"the index of My Files cannot be converted: {error}") from error
        _log.warning("store converted", extra={"records": written, "damaged_index": is_damaged})


def _indexed(path: Path) -> tuple[dict[str, dict[_Key, Entry]], bool]:
    """Return the records of an index, by area, and whether it is damaged."""
    found: dict[str, dict[_Key, Entry]] = {}
    if not path.exists():
        return found, False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version >= _CONVERTED:
                message = f"the index of My Files has version {version}, later than this program"
                raise CallError(Code.E_STORE, message)
            (state,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            for row in connection.execute(_ROWS_1 if version == 1 else _ROWS) if version else ():
                with contextlib.suppress(DamagedEntry):
                    key, entry = _entry(row["area"], row)
                    found.setdefault(row["area"], {})[key] = entry
            return found, state != "ok"
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _UNREADABLE:
            raise
        _log.warning("index cannot be read", extra={"reason": str(error)})
        return found, True


def _entry(area: str, row: Any) -> tuple[_Key, Entry]:
    """Return the record of a row.

    Raises:
        DamagedEntry: It is not a row.
    """
    try:
        metadata, name, digest = json.loads(row["said"]), row["name"], row["sha256"]
        record = {
            "id": row["id"],
            "name": name if name is None else safe_name(name),
            "mime": row["mime"],
            "size": row["size"],
            "sha256": digest,
            # In other areas the key identifies the owner.
            "scope": {
                "user_id": user_of(area.removeprefix("users/")) if area.startswith("users/") else None,
                "session_id": row["session"][1:] if row["session"] else None,
                "trace_id": row["trace"],
            },
            "said": {
                **metadata,
                "name": row["wanted"],
                "retention": row["retention"],
                "expires_at": _time(metadata["expires"]),
            },
            "created": _time(row["created"]),
            "expires_at": _time(row["expires"]),
            "key": None,
        }
        blob = f"{area}/objects/{digest[:2]}/{digest}"
        entry = Entry.read(json.dumps({"record": record, "blob": blob, "put": row["put"]}).encode())
        shown = name if entry.record.metadata.is_file else entry.record.id
        place = OwnerPlace(area, row["session"])
        return (row["session"], row["retention"], shown), replace(
            entry, key=key_of(f"{area}/", place, entry.record)
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedEntry("it is not a row") from error


def _time(seconds: float | None) -> str | None:
    """Return a time in seconds since 1970 as text: pydantic takes large numbers for milliseconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def _merged(path: Path, area: str, indexed: dict[_Key, Entry], *, is_damaged: bool) -> dict[_Key, Entry]:
    """Return the records of an area, merged from its journal and the index."""
    if not path.exists():
        return indexed
    latest: dict[_Key, Entry | None] = {}
    last: dict[_Key, int] = {}
    unread = 0
    for line in _lines(path):
        try:
            match line:
                case {"row": dict(row)}:
                    key, entry = _entry(area, row)
                    latest[key], last[key] = entry, entry.put
                case {"gone": [str(session), str(retention), str(shown)]}:
                    latest[session, retention, shown] = None
                case {"coming": _} | {"journal": 1}:
                    pass
                case {"journal": version}:
                    message = f"a journal of My Files has version {version}, later than this program"
                    raise CallError(Code.E_STORE, message)
                case _:
                    unread += 1
        except DamagedEntry:
            unread += 1
    if unread:
        _log.warning("journal lines cannot be read", extra={"area": area, "lines": unread})
        shutil.copyfile(path, path.with_name("journal.damaged"))
    merged = {key: entry for key, entry in latest.items() if entry is not None}
    later = {k: entry for k, entry in indexed.items() if k not in last or entry.put > last[k]}
    return merged if is_damaged else merged | later


def _lines(path: Path) -> Iterator[dict[str, Any] | None]:
    with path.open("rb") as file:
        for raw in file:
            sum_, _, text = raw.removesuffix(b"\n").partition(b" ")
            entry = None
            if sum_ == b"%08x" % zlib.crc32(text):
                with contextlib.suppress(ValueError, RecursionError):
                    entry = json.loads(text)
            yield entry if isinstance(entry, dict) else None


def _finish(root: Path) -> None:
    """Replace the old index with a marker, which completes the conversion; then remove the rest."""
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
