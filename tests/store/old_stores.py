"""Stores as earlier versions wrote them, by their documented formats."""

import hashlib
import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from runner.store.s3.bucket import Bucket, BucketAddress

__all__ = ["journal_line", "make_bucket", "make_version_1", "make_version_3"]

_VERSION_1 = """
CREATE TABLE files (
    segment TEXT NOT NULL, name TEXT NOT NULL, wanted TEXT NOT NULL, id TEXT NOT NULL, size INTEGER NOT NULL,
    sha256 TEXT NOT NULL, mime TEXT NOT NULL, origin TEXT NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (segment, name)
) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
_VERSION_3 = """
CREATE TABLE artifacts (
    number INTEGER PRIMARY KEY, area TEXT NOT NULL, session TEXT NOT NULL, trace TEXT,
    retention TEXT NOT NULL, id TEXT NOT NULL, name TEXT, wanted TEXT, size INTEGER NOT NULL,
    sha256 TEXT NOT NULL, mime TEXT NOT NULL,
    said TEXT NOT NULL, created REAL NOT NULL, expires REAL, put INTEGER NOT NULL, used INTEGER NOT NULL
);
PRAGMA user_version = 3;
"""


def make_version_1(root: Path, count: int) -> dict[str, bytes]:
    """Make a store of files of alice; return their contents by name."""
    contents = {f"{number}.csv": b"row\n" * number for number in range(1, count + 1)}
    root.mkdir()
    with closing(sqlite3.connect(root / "index.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_VERSION_1)
        for number, (name, content) in enumerate(contents.items()):
            digest = _place(root / "users/alice", content)
            row = ("alice", name, name, f"art_{digest[:12]}", len(content), digest, "text/csv")
            values = (*row, "uploaded", 1.7e9 + number)
            connection.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        connection.commit()
    return contents


def make_version_3(root: Path, expires: float | None = None) -> dict[str, bytes]:
    """Make a store whose index lags behind the journal of alice; return her contents by name."""
    area = root / "users/alice"
    area.mkdir(parents=True)
    rows = [_row(area, number, f"{number}.txt", b"content %d" % number) for number in range(5)]
    rows = [{**row, "expires": expires} for row in rows]
    gone = _row(area, 9, "gone.txt", b"content 0")
    with closing(sqlite3.connect(root / "index.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_VERSION_3)
        for row in (rows[0], rows[1], gone):
            values = {**row, "area": "users/alice", "used": row["put"]}
            columns = ", ".join(values)
            marks = ", ".join(f":{column}" for column in values)
            connection.execute(f"INSERT INTO artifacts ({columns}) VALUES ({marks})", values)
        connection.commit()
    lines: list[dict[str, Any]] = [{"journal": 1, "generation": 1, "id": "x"}]
    lines += [{"row": row} for row in (*rows, gone)]
    lines += [{"gone": ["", "files", "gone.txt"], "sha256": gone["sha256"]}]
    (area / "journal").write_bytes(b"".join(map(journal_line, lines)))
    (root / "reserve").mkdir()
    (root / "reserve/0").write_bytes(bytes(4096))
    return {f"{number}.txt": b"content %d" % number for number in range(5)}


def make_bucket(address: BucketAddress) -> None:
    """Put files of alice as earlier versions did: plain, with a later end, without a record, half removed."""
    bucket, area = Bucket(address), f"{address.prefix}alice/"
    for name, token in (("a.csv", "aa"), ("ends.txt", "bb"), ("lost.txt", "cc"), ("gone.txt", "dd")):
        content = name.encode()
        digest = hashlib.sha256(content).hexdigest()
        place = f"{area}artifacts/20261129/{token}/{name}"
        metadata: dict[str, Any] = {
            "name": name,
            "mime": None,
            "origin": "uploaded",
            "retention": "files",
            "namespace": "art",
        }
        metadata |= {"source": {"tool": "t"}, "facts": {"rows": 3}, "reason": None, "expires_at": None}
        record: dict[str, Any] = {
            "id": f"art_{digest[:12]}",
            "name": name,
            "mime": "text/plain",
            "size": len(content),
            "sha256": digest,
            "scope": {"tenant_id": None, "user_id": "alice", "session_id": None, "trace_id": None},
            "said": metadata,
            "created": "2026-11-29T10:00:00Z",
            "expires_at": None,
            "pending": False,
            "key": place,
        }
        written = {"record": record, "token": token, "put": 1796036592132433920, "used": 1796036592132433920}
        bucket.put(place, content)
        bucket.put(f"{area}ids/all/art_{digest}/{token}/f/{name}", json.dumps(written).encode())
        if name != "lost.txt":
            bucket.put(f"{area}index/all/names/{name}/0", json.dumps(written).encode())
        if name == "ends.txt":
            record["expires_at"] = "2999-01-01T00:00:00Z"
            bucket.put(f"{area}index/all/lives/{token}", json.dumps(written).encode())
        if name == "gone.txt":
            bucket.delete(f"{area}index/all/names/{name}/0")
            bucket.put(f"{area}index/all/lives/{token}", b"")


def journal_line(entry: dict[str, Any]) -> bytes:
    """Return a line of a journal."""
    text = json.dumps(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _row(area: Path, number: int, name: str, content: bytes) -> dict[str, Any]:
    digest = _place(area, content)
    fields = {"mime": None, "origin": "uploaded", "namespace": "art", "source": {}, "facts": {"rows": number}}
    return {
        "session": "",
        "trace": None,
        "retention": "files",
        "id": f"art_{digest[:12]}",
        "name": name,
        "wanted": name,
        "size": len(content),
        "sha256": digest,
        "mime": "text/plain",
        "said": json.dumps({**fields, "reason": None, "expires": None}),
        "created": 1.7e9 + number,
        "expires": None,
        "put": number + 1,
    }


def _place(area: Path, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    place = area / "objects" / digest[:2] / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return digest
