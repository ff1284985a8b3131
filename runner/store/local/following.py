"""What brings the rows of one area and its journal together again, within one change of the index.

Usually they agree, and finding that out is all there is to do. They do not after a crash or a power cut (the
journal reaches further), where an index was restored from a backup or is made anew (likewise), where the
journal was lost or cut (the index knows more), and in a store of an earlier version, which had no journals.

Source: `docs/decisions/0023-a-journal-beside-the-bytes.md`.
"""

import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from runner.store.local.journal import Journal, JournalLine, Key, Mark, key_of
from runner.store.local.objects import Objects
from runner.store.local.row import Row
from runner.store.local.rows import COLUMNS, MARKS, Rows

__all__ = ["JOURNALS", "Follower", "Known"]

JOURNALS = """
CREATE TABLE journals (
    area TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    id TEXT NOT NULL,
    place INTEGER NOT NULL,
    doubtful INTEGER NOT NULL
) WITHOUT ROWID
"""
"""How far the index has followed each journal. Where its history is not known without a gap, that is
doubtful: bytes of that area that no row needs are set apart, not removed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """How far the index has followed a journal.

    Attributes:
        mark: Which journal, up to where.
        doubtful: Whether something of its history is not known.
    """

    mark: Mark
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Follower:
    """Brings rows and journals together.

    Attributes:
        connection: The index; `follow` needs it within a change.
        root: The folder of the store.
        anew: Whether the index is being made anew.
    """

    connection: sqlite3.Connection
    root: Path
    anew: bool = False

    def known(self, area: str) -> Known | None:
        """Return how far the index has followed the journal of an area; None: it never did."""
        query = "SELECT generation, id, place, doubtful FROM journals WHERE area = ?"
        found = self.connection.execute(query, (area,)).fetchone()
        if found is None:
            return None
        generation, id_, place, doubtful = found
        return Known(mark=Mark(generation=generation, id=id_, end=place), doubtful=bool(doubtful))

    def is_behind(self, area: str) -> bool:
        """Say whether the journal of an area says what the index does not know."""
        mark, known = Journal(self.root, area).mark(), self.known(area)
        return mark is not None and (known is None or known.mark != mark)

    def follow(self, area: str) -> Mark:
        """Bring rows and journal of an area together; return the journal as it is now.

        Raises:
            OSError: The journal cannot be read or written.
            sqlite3.Error: The index cannot be changed.
        """
        journal, known = Journal(self.root, area), self.known(area)
        mark = journal.mark()
        if mark is not None and known is not None and known.mark == mark:
            return mark
        if mark is None:
            # A new area, one of an earlier version, or its journal is lost.
            generation = 1 if known is None else known.mark.generation + 1
            self._rewrite(journal, generation=generation, doubtful=known is not None)
        elif known is None:
            self._adopt(journal, first=mark.generation == 1)
        elif (known.mark.generation, known.mark.id) == (
            mark.generation,
            mark.id,
        ) and known.mark.end < mark.end:
            self._read_on(journal, known)
        elif mark.generation > known.mark.generation:
            self._take_all(journal)
        elif mark.id == known.mark.id:
            # It was cut: the index knows more than it says.
            self._rewrite(journal, generation=mark.generation + 1, doubtful=True)
        else:
            self._merge(journal, generation=max(mark.generation, known.mark.generation) + 1)
        return self._present(area)

    def forget_doubts(self, area: str) -> None:
        """Note that whatever the rows of an area do not need has been set apart."""
        self.connection.execute("UPDATE journals SET doubtful = 0 WHERE area = ?", (area,))

    def note(self, area: str, mark: Mark, *, doubtful: bool | None = None) -> None:
        """Note how far the index has followed; whether that is doubtful stays as it is unless said."""
        self.connection.execute(
            "INSERT INTO journals (area, generation, id, place, doubtful) "
            "VALUES (:area, :generation, :id, :place, COALESCE(:doubtful, 0)) "
            "ON CONFLICT (area) DO UPDATE SET generation = :generation, id = :id, place = :place, "
            "doubtful = COALESCE(:doubtful, doubtful)",
            {
                "area": area,
                "generation": mark.generation,
                "id": mark.id,
                "place": mark.end,
                "doubtful": doubtful,
            },
        )

    def compact(self, area: str) -> None:
        """Write the journal of an area anew, without what is over and what it says of removed bytes."""
        self._rewrite(Journal(self.root, area), generation=self._present(area).generation + 1, doubtful=None)

    def _present(self, area: str) -> Mark:
        known = self.known(area)
        if known is None:
            raise sqlite3.DatabaseError(f"the index does not know the journal of {area}")
        return known.mark

    def _rewrite(self, journal: Journal, *, generation: int, doubtful: bool | None) -> None:
        if journal.mark() is not None and any(line == JournalLine() for line in journal.lines()):
            # A person may still read more in it than we do.
            _log.warning("damaged journal kept", extra={"area": journal.area, "as": journal.keep_copy()})
        rows = Rows(self.connection).of_area(journal.area)
        self.note(journal.area, journal.write(rows, generation=generation), doubtful=doubtful)

    def _read_on(self, journal: Journal, known: Known) -> None:
        journal.settle()
        unread = self._replay(journal.area, journal.lines(known.mark.end))
        mark = journal.mark() or known.mark
        # A line that was torn when its writer died says nothing that anybody was promised.
        self.note(journal.area, mark, doubtful=True if unread else None)

    def _take_all(self, journal: Journal) -> None:
        """Take what a journal says for all there is: the index is an earlier one."""
        self.connection.execute("DELETE FROM artifacts WHERE area = ?", (journal.area,))
        self._adopt(journal)

    def _adopt(self, journal: Journal, *, first: bool = False) -> None:
        """Take in a journal that the index does not know; rows that it has are an earlier version's."""
        area = journal.area
        before = {key_of(row): row for row in Rows(self.connection).of_area(area)}
        self.connection.execute("DELETE FROM artifacts WHERE area = ?", (area,))
        journal.settle()
        mentioned: set[str | None] = set()
        unread = self._replay(area, journal.lines(), mentioned)
        after = {key_of(row) for row in Rows(self.connection).of_area(area)}
        # What the journal speaks of it knows better; what it never heard of stays.
        kept = [row for key, row in before.items() if key not in after and row.sha256 not in mentioned]
        self._insert(kept)
        mark = journal.mark() or Mark(generation=0, id="", end=0)
        if after or kept or unread:
            facts = {"area": area, "artifacts": len(after) + len(kept), "unreadable_lines": unread}
            _log.warning("index of an area rebuilt from its journal", extra=facts)
        if kept or not mark.generation:
            self._rewrite(journal, generation=mark.generation + 1, doubtful=True)
        else:
            # Its first generation tells all there ever was. Of a new index nobody knows whether that is so.
            self.note(area, mark, doubtful=bool(unread) or self.anew or not first)

    def _merge(self, journal: Journal, *, generation: int) -> None:
        """Take from an earlier journal, or from another's, what the index lacks and whose bytes are there."""
        journal.settle()
        objects = Objects(self.root)
        there = {key_of(row) for row in Rows(self.connection).of_area(journal.area)}
        said, _ = _outcome(journal.lines())
        found = [row for key, row in said.items() if row is not None and key not in there]
        back = [row for row in found if objects.has(journal.area, row.sha256, apart=True)]
        self._insert(back)
        facts = {"area": journal.area, "artifacts": len(back), "without_bytes": len(found) - len(back)}
        _log.warning("another journal taken in", extra=facts)
        journal.keep_copy()
        self._rewrite(journal, generation=generation, doubtful=True)

    def _replay(
        self, area: str, lines: Iterable[JournalLine], mentioned: set[str | None] | None = None
    ) -> int:
        """Do what lines say, each all the same if it was done before; return how many said nothing."""
        rows, unread = _outcome(lines, mentioned)
        for key in rows:
            self._delete(area, key)
        self._insert(row for row in rows.values() if row is not None)
        return unread

    def _delete(self, area: str, key: Key) -> None:
        session, retention, shown = key
        column = "name" if retention == "files" else "id"
        query = f"DELETE FROM artifacts WHERE area = ? AND session = ? AND retention = ? AND {column} = ?"  # noqa: S608 - names of ours
        self.connection.execute(query, (area, session, retention, shown))

    def _insert(self, rows: Iterable[Row]) -> None:
        query = f"INSERT INTO artifacts ({COLUMNS}) VALUES ({MARKS})"  # noqa: S608 - names of ours
        self.connection.executemany(query, (astuple(replace(row, number=None)) for row in rows))


def _outcome(
    lines: Iterable[JournalLine], mentioned: set[str | None] | None = None
) -> tuple[dict[Key, Row | None], int]:
    """Return what lines come to, None for what is gone, and how many of them said nothing."""
    rows: dict[Key, Row | None] = {}
    unread = 0
    for line in lines:
        if line.row is not None:
            rows[key_of(line.row)] = line.row
        elif line.gone is not None:
            rows[line.gone] = None
        unread += line == JournalLine()
        if mentioned is not None:
            mentioned.add(line.sha256)
    return rows, unread
