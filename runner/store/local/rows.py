"""The rows of an index: which artifacts there are, whose, under which names, and until when.

All of it is SQL within one transaction, so that what is decided is decided for every process at once.
The bytes are somebody else's: who removes rows is told which bytes nobody refers to any more.

Source: sqlite.org, "Row Values"; rules ST1 to ST4 of the conformance cases; contradiction C29.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import UTC, datetime

from runner.formats.filenames import safe_name, unique_name
from runner.formats.mime import DEFAULT_MIME, guess
from runner.store.areas import OwnerPlace, place_of, places_for
from runner.store.local.row import Bytes, Row, said_of, written
from runner.store.protocol import Put, Reason, Record, Retention, Scope
from runner.store.retention import (
    KeptObservation,
    RetentionRules,
    check_quota,
    end_of_touched,
    ends_at,
    make_room,
)

__all__ = ["COLUMNS", "MARKS", "Added", "Rows"]

_ID_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What came of a put.

    Attributes:
        row: The artifact.
        gone: The rows that had to go for it, with the reason.
    """

    row: Row
    gone: tuple[tuple[Row, Reason], ...]


COLUMNS = ", ".join(column.name for column in fields(Row))
MARKS = ", ".join("?" for _ in fields(Row))


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows, within one transaction.

    Attributes:
        connection: The index.
        changes: What was changed, in order: each row as it is now, or as it was, and whether it is gone.
    """

    connection: sqlite3.Connection
    changes: list[tuple[Row, bool]] = field(default_factory=list)

    def put(
        self, about: Put, content: tuple[str, int], *, scope: Scope, now: datetime, rules: RetentionRules
    ) -> Added:
        """Add an artifact, or renew it where its owner has it already.

        Args:
            about: What is said of it.
            content: Hex digest and length of its bytes.
            scope: Whose it is.
            now: The present time.
            rules: What may be kept.

        Raises:
            CallError: `E_QUOTA` or `E_FILE_TOO_LARGE`.
        """
        named = about.retention is Retention.FILES or about.name is not None
        new = _New(
            about=about,
            place=place_of(scope),
            trace=scope.trace_id,
            wanted=safe_name(about.name or "") if named else None,
            sha256=content[0],
            size=content[1],
        )
        gone = [(row, Reason.EXPIRED) for row in self.remove_ended(now, area=new.place.area)]
        old = self._same(new)
        if about.retention is Retention.FILES:
            self._check_quota(new, rules)
        else:
            gone += self._make_room(new, old, rules)
        return Added(row=self._write(new, old, now, rules), gone=tuple(gone))

    def with_id(self, id_: str, *, scope: Scope, now: datetime) -> Record | None:
        """Return the artifact of an id; of several, a file before an observation, the one put last."""
        tail = "id = ? ORDER BY retention = 'observations', put DESC LIMIT 1"
        return self._record(scope, now, tail, id_)

    def named(self, name: str, *, scope: Scope, now: datetime) -> Record | None:
        """Return the file of a name; of several, the one bound to the caller's session."""
        tail = "retention = 'files' AND name = ? ORDER BY session = '', put DESC LIMIT 1"
        return self._record(scope, now, tail, name)

    def last_observation(self, name: str, *, scope: Scope, now: datetime) -> Record | None:
        """Return the observation of a name that was put last."""
        tail = "retention = 'observations' AND name = ? ORDER BY put DESC LIMIT 1"
        return self._record(scope, now, tail, name)

    def of(self, *, scope: Scope, now: datetime) -> list[Record]:
        """Return all that a scope may have, by name."""
        owners = places_for(scope)
        found = self._visible(owners, now, "TRUE ORDER BY name IS NULL, name, put")
        return [row.record(owners) for row in found]

    def remove(self, id_: str, *, scope: Scope, now: datetime, name: str | None) -> list[Row]:
        """Remove an artifact, by all its names or by one; return the rows that there were."""
        tail, values = ("id = ?", (id_,)) if name is None else ("id = ? AND name = ?", (id_, name))
        rows = list(self._visible(places_for(scope), now, tail, *values))
        self._delete(rows)
        return rows

    def touch(
        self, id_: str, *, scope: Scope, now: datetime, expires_at: datetime | None, rules: RetentionRules
    ) -> bool:
        """Renew the lifetime of an observation, or let an artifact end at `expires_at`."""
        rows = list(self._visible(places_for(scope), now, "id = ?", id_))
        for row in rows:
            said = said_of(row) if expires_at is None else replace(said_of(row), expires_at=expires_at)
            held = None if row.expires is None else datetime.fromtimestamp(row.expires, UTC)
            until = expires_at or end_of_touched(said, held, now=now, rules=rules)
            query = "UPDATE artifacts SET said = ?, expires = ? WHERE number = ?"
            seconds = None if until is None else until.timestamp()
            later = replace(row, said=written(said), expires=seconds)
            self.connection.execute(query, (later.said, seconds, row.number))
            self.changes.append((later, False))
        return bool(rows)

    def use(self, record: Record, *, scope: Scope, now: datetime) -> Row | None:
        """Return the row of a record that a scope is about to read, and note the use of an observation."""
        owners = places_for(scope)
        place = place_of(record.scope)
        tail = "area = ? AND session = ? AND id = ? AND name IS ? LIMIT 1"
        row = next(self._visible(owners, now, tail, *place, record.id, record.name), None)
        if row is not None and record.said.retention is Retention.OBSERVATIONS:
            query = "UPDATE artifacts SET used = ? WHERE number = ?"
            self.connection.execute(query, (self._next(), row.number))
        return row

    def remove_ended(self, now: datetime, *, area: str | None = None) -> list[Row]:
        """Remove all that has ended, whoever's it is, or of one area; return the rows."""
        rows = list(self._select("expires < ? AND COALESCE(area = ?, TRUE)", now.timestamp(), area))
        self._delete(rows)
        return rows

    def areas_with_ended(self, now: datetime) -> list[str]:
        """Return the areas in which something has ended."""
        query = "SELECT DISTINCT area FROM artifacts WHERE expires < ? ORDER BY area"
        return [area for (area,) in self.connection.execute(query, (now.timestamp(),))]

    def areas(self) -> list[str]:
        """Return the areas that have rows."""
        return [
            area for (area,) in self.connection.execute("SELECT DISTINCT area FROM artifacts ORDER BY area")
        ]

    def of_area(self, area: str) -> list[Row]:
        """Return all rows of an area, in the order in which they were put."""
        return list(self._select("area = ? ORDER BY put", area))

    def count(self, *, now: datetime) -> int:
        """Return how many rows have not ended."""
        query = "SELECT COUNT(*) FROM artifacts WHERE expires IS NULL OR expires >= ?"
        (found,) = self.connection.execute(query, (now.timestamp(),)).fetchone()
        return int(found)

    def kept_bytes(self) -> int:
        """Return the length of all contents; what an owner has under several names lies here once."""
        query = "SELECT COALESCE(SUM(size), 0) FROM (SELECT DISTINCT area, sha256, size FROM artifacts)"
        (size,) = self.connection.execute(query).fetchone()
        return int(size)

    def sizes(self, area: str, *, without: str = "") -> list[int]:
        """Return the length of each content of files in an area, but for that of one digest."""
        query = (
            "SELECT size FROM (SELECT DISTINCT sha256, size FROM artifacts "
            "WHERE area = ? AND retention = 'files' AND sha256 <> ?)"
        )
        return [int(size) for (size,) in self.connection.execute(query, (area, without))]

    def refers_to(self, area: str, sha256: str) -> bool:
        """Say whether a row needs these bytes."""
        return self._first("area = ? AND sha256 = ?", area, sha256) is not None

    def all_bytes(self) -> Iterator[tuple[str, Bytes]]:
        """Yield the bytes that rows need, each with a name or an id that it goes by."""
        query = "SELECT COALESCE(name, id), area, sha256, size FROM artifacts"
        for shown, area, sha256, size in self.connection.execute(query):
            yield shown, Bytes(area=area, sha256=sha256, size=size)

    def _record(self, scope: Scope, now: datetime, tail: str, *values: str) -> Record | None:
        owners = places_for(scope)
        row = next(self._visible(owners, now, tail, *values), None)
        return None if row is None else row.record(owners)

    def _visible(
        self, owners: Mapping[OwnerPlace, Scope], now: datetime, tail: str, *values: str | None
    ) -> Iterator[Row]:
        marks = ", ".join("(?, ?)" for _ in owners)
        places = [part for place in owners for part in place]
        where = f"(area, session) IN (VALUES {marks}) AND (expires IS NULL OR expires >= ?) AND {tail}"
        return self._select(where, *places, now.timestamp(), *values)

    def _same(self, new: "_New") -> Row | None:
        """Return the artifact that a new one is again."""
        tail = "area = ? AND session = ? AND retention = ? AND sha256 = ?"
        # A user may have many files of one content.
        tail += " AND (retention = 'observations' OR ? IN (wanted, name))"
        rows = self._select(tail, *new.place, new.about.retention.value, new.sha256, new.wanted)
        return next((row for row in rows if said_of(row).id_prefix == new.prefix), None)

    def _write(self, new: "_New", old: Row | None, now: datetime, rules: RetentionRules) -> Row:
        about = new.about if old is None else _renewed(new.about, old)
        expires_at = ends_at(about, now=now, rules=rules)
        count = self._next()
        row = Row(
            number=old.number if old else None,
            area=new.place.area,
            session=new.place.session,
            trace=new.trace,
            retention=about.retention.value,
            id=old.id if old else self._free_id(new),
            name=self._free_name(new, old),
            wanted=old.wanted if old and about.retention is Retention.FILES else new.wanted,
            size=new.size,
            sha256=new.sha256,
            mime=about.mime or (DEFAULT_MIME if new.wanted is None else guess(new.wanted)),
            said=written(about),
            created=now.timestamp(),
            expires=None if expires_at is None else expires_at.timestamp(),
            put=count,
            used=count,
        )
        query = f"REPLACE INTO artifacts ({COLUMNS}) VALUES ({MARKS})"  # noqa: S608 - names of ours
        self.changes.append((row, False))
        return replace(row, number=self.connection.execute(query, astuple(row)).lastrowid)

    def _free_name(self, new: "_New", old: Row | None) -> str | None:
        if new.about.retention is Retention.OBSERVATIONS or new.wanted is None:
            return new.wanted
        if old is not None:
            return old.name
        # What a session sees are its own files and those bound to none: no name twice among them.
        among = "area = ? AND session IN (?, '') AND retention = 'files' AND name = ?"
        return unique_name(new.wanted, _Taken(lambda name: self._first(among, *new.place, name) is not None))

    def _free_id(self, new: "_New") -> str:
        # Twelve digits are 48 bits: too few to trust, so other content with the same ones gets more.
        clash = "area = ? AND id = ? AND sha256 <> ?"
        digits = range(_ID_DIGITS, len(new.sha256) + 1, 4)
        ids = (new.prefix + new.sha256[:count] for count in digits)
        return next(id_ for id_ in ids if self._first(clash, new.place.area, id_, new.sha256) is None)

    def _check_quota(self, new: "_New", rules: RetentionRules) -> None:
        check_quota(new.size, sum(self.sizes(new.place.area, without=new.sha256)), rules.files)

    def _make_room(self, new: "_New", old: Row | None, rules: RetentionRules) -> list[tuple[Row, Reason]]:
        tail = "area = ? AND session = ? AND retention = 'observations'"
        rows = {str(row.number): row for row in self._select(tail, *new.place)}
        held = [
            KeptObservation(key=key, size=row.size, trace=row.trace, put=row.put, used=row.used)
            for key, row in rows.items()
            if old is None or row.number != old.number
        ]
        going = make_room(new.size, new.trace, held, rules.observations)
        gone = [(rows[item.key], reason) for item, reason in going]
        self._delete(row for row, _ in gone)
        return gone

    def _next(self) -> int:
        (last,) = self.connection.execute("SELECT COALESCE(MAX(used), 0) FROM artifacts").fetchone()
        return int(last) + 1

    def _delete(self, rows: Iterable[Row]) -> None:
        going = list(rows)
        self.connection.executemany(
            "DELETE FROM artifacts WHERE number = ?", [(row.number,) for row in going]
        )
        self.changes.extend((row, True) for row in going)

    def _select(self, where: str, *values: object) -> Iterator[Row]:
        query = f"SELECT {COLUMNS} FROM artifacts WHERE {where}"  # noqa: S608 - names of ours, marks for values
        return (Row(*columns) for columns in self.connection.execute(query, values))

    def _first(self, where: str, *values: object) -> Row | None:
        return next(self._select(f"{where} LIMIT 1", *values), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _New:
    """An artifact on its way into the index."""

    about: Put
    place: OwnerPlace
    trace: str | None
    wanted: str | None
    sha256: str
    size: int

    @property
    def prefix(self) -> str:
        return self.about.id_prefix


@dataclass(frozen=True, slots=True)
class _Taken:
    """The names that are taken, asked for one by one: a user may have a great many."""

    asked: Callable[[str], bool]

    def __contains__(self, name: object) -> bool:
        return self.asked(str(name))


def _renewed(about: Put, old: Row) -> Put:
    """Return what holds of an artifact that is put again."""
    before = said_of(old)
    if about.retention is Retention.OBSERVATIONS or (before.expires_at and not about.expires_at):
        return about
    kept = replace(about, origin=before.origin, facts=about.facts or before.facts)
    # What stays for good does so although a tool defers the same file.
    return kept if before.expires_at else replace(kept, reason=before.reason, expires_at=None)
