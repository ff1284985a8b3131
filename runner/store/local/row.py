"""One row of an index: one artifact of one owner, by one name, and what it means.

Source: the schema below; document 004, section 5.4.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from runner.store.areas import OwnerPlace
from runner.store.protocol import Origin, Put, Reason, Record, Removal, Retention, Scope

__all__ = ["SCHEMA", "Bytes", "Row", "said_of", "written"]

SCHEMA = """
CREATE TABLE artifacts (
    number INTEGER PRIMARY KEY,
    area TEXT NOT NULL,
    session TEXT NOT NULL,
    trace TEXT,
    retention TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT,
    wanted TEXT,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    mime TEXT NOT NULL,
    said TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    put INTEGER NOT NULL,
    used INTEGER NOT NULL
);
CREATE UNIQUE INDEX artifacts_by_name ON artifacts (area, session, name) WHERE retention = 'files';
CREATE INDEX artifacts_by_id ON artifacts (area, id);
CREATE INDEX artifacts_by_content ON artifacts (area, sha256);
CREATE INDEX artifacts_by_size ON artifacts (area, retention, sha256, size);
CREATE INDEX artifacts_by_end ON artifacts (expires) WHERE expires IS NOT NULL;
CREATE INDEX artifacts_by_use ON artifacts (used);
"""
"""Version 2 of the index. `put` and `used` only grow: clocks stand still, and are set back."""


@dataclass(frozen=True, slots=True)
class Row:
    """One artifact of one owner, by one name. The fields are the columns, in their order.

    Attributes:
        number: What the row is known by.
        area: Area of its owner.
        session: Session that it is bound to, or nothing.
        trace: The call it was last put by.
        retention: Value of its `Retention`.
        id: Its id.
        name: Its name; unique within area and session for files.
        wanted: The name that was asked for; `name` is it, or it with a number where it was taken.
        size: Length in bytes.
        sha256: Hex digest.
        mime: MIME type.
        said: The rest of what was said of it, as JSON.
        created: Seconds since the epoch; when it was last put.
        expires: Seconds since the epoch; the last moment at which it is found.
        put: Number of its last put, counting up.
        used: Number of its last put or use, counting up with `put`.
    """

    number: int | None
    area: str
    session: str
    trace: str | None
    retention: str
    id: str
    name: str | None
    wanted: str | None
    size: int
    sha256: str
    mime: str
    said: str
    created: float
    expires: float | None
    put: int
    used: int

    @property
    def bytes(self) -> "Bytes":
        """Return where its bytes are."""
        return Bytes(area=self.area, sha256=self.sha256, size=self.size)

    def removal(self, reason: Reason) -> Removal:
        """Return the report of its removal."""
        return Removal(what=self.id, name=self.name, size=self.size, reason=reason)

    def record(self, owners: Mapping[OwnerPlace, Scope]) -> Record:
        """Return it as the protocol has it; `owners` says whose place it lies in."""
        owner = owners[OwnerPlace(self.area, self.session)]
        return Record(
            id=self.id,
            name=self.name,
            mime=self.mime,
            size=self.size,
            sha256=self.sha256,
            scope=replace(owner, trace_id=self.trace),
            said=said_of(self),
            created=datetime.fromtimestamp(self.created, UTC),
            expires_at=_moment(self.expires),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Stored bytes.

    Attributes:
        area: The area they are in.
        sha256: Their hex digest.
        size: Their length.
    """

    area: str
    sha256: str
    size: int


def written(about: Put) -> str:
    """Return what was said of an artifact as the column `said` has it: all that has no column of its own."""
    said: dict[str, Any] = {
        "mime": about.mime,
        "origin": about.origin.value,
        "namespace": about.namespace,
        "source": dict(about.source),
        "facts": dict(about.facts),
        "reason": about.reason,
        "expires": None if about.expires_at is None else about.expires_at.timestamp(),
    }
    return json.dumps(said)


def said_of(row: Row) -> Put:
    """Return what was said of an artifact."""
    said = json.loads(row.said)
    return Put(
        name=row.wanted,
        mime=said["mime"],
        origin=Origin(said["origin"]),
        retention=Retention(row.retention),
        namespace=said["namespace"],
        source=said["source"],
        facts=said["facts"],
        reason=said["reason"],
        expires_at=_moment(said["expires"]),
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
