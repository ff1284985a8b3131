"""Stored bytes that no row needs: which are ours to remove, and which are set apart.

Bytes are removed only if the journal beside them says what they were: of a file that was removed, or of a put
that was interrupted. What no journal knows, or one whose history has a gap, goes to the quarantine of its
area, stays there, and comes back by itself if a row needs it again.

Source: `docs/decisions/0023-a-journal-beside-the-bytes.md`.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.store.local.following import Follower
from runner.store.local.index import Index
from runner.store.local.journal import Journal, JournalLine
from runner.store.local.objects import Objects
from runner.store.local.row import Bytes
from runner.store.local.rows import Rows

__all__ = ["Orphans"]

_LEAST_BYTES = 256 * 1024
# A line is longer than what it says of one artifact by its names of fields.
_LINE_BYTES = 600

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """The bytes of one store that no row needs.

    Attributes:
        root: The folder of the store.
        index: Its index.
    """

    root: Path
    index: Index

    def follow_all(self) -> None:
        """Bring rows and journals of all areas together, which writes those that an earlier version had not.

        One that cannot be read is logged and passed over; its user hears of it.
        """
        with self.index.read() as rows:
            areas = {*rows.areas(), *self._objects.areas()}
        for area in sorted(areas):
            try:
                self.index.follow(area)
            except OSError as error:
                _log.error("journal cannot be followed", extra={"area": area, "reason": error.strerror})

    def clear(self) -> list[Bytes]:
        """Remove what is ours to remove, set the rest apart, and bring back what is needed again.

        Returns:
            What was removed.
        """
        with self.index.read() as rows:
            needed = {(content.area, content.sha256) for _, content in rows.all_bytes()}
        self._bring_back(needed)
        orphans: dict[str, list[Bytes]] = {}
        for there in self._objects.stored():
            if (there.area, there.sha256) not in needed:
                orphans.setdefault(there.area, []).append(there)
        removed = [there for area, found in orphans.items() for there in self._clear_area(area, found)]
        for area in self._with_much_over():
            with self.index.change(area) as rows:
                self._compact(rows, area)
        return removed

    def _clear_area(self, area: str, found: Iterable[Bytes]) -> Iterator[Bytes]:
        apart = []
        try:
            with self.index.change(area) as rows:
                ours = self._ours(Follower(rows.connection, self.root), area)
                for there in found:
                    if rows.refers_to(area, there.sha256):
                        continue
                    if there.sha256 in ours:
                        self._objects.delete(area, there.sha256)
                        yield there
                    elif self._objects.has(area, there.sha256):
                        self._objects.set_apart(area, there.sha256)
                        apart.append(there)
        except OSError as error:
            _log.error("left-over bytes not cleared", extra={"area": area, "reason": error.strerror})
        if apart:
            size = sum(there.size for there in apart)
            _log.warning("bytes set apart", extra={"area": area, "files": len(apart), "bytes": size})

    def _ours(self, follower: Follower, area: str) -> set[str]:
        """Return the digests of which it is known that nobody misses them."""
        known = follower.known(area)
        if known is None or known.doubtful:
            return set()
        lines = list(Journal(self.root, area).lines())
        return set() if JournalLine() in lines else {line.sha256 for line in lines if line.sha256}

    def _bring_back(self, needed: set[tuple[str, str]]) -> None:
        for there in list(self._objects.apart()):
            if (there.area, there.sha256) not in needed:
                continue
            with self.index.change(there.area) as rows:
                if rows.refers_to(there.area, there.sha256) and not self._objects.has(
                    there.area, there.sha256
                ):
                    self._objects.bring_back(there.area, there.sha256)
                    _log.warning("bytes brought back", extra={"area": there.area, "bytes": there.size})

    def _with_much_over(self) -> list[str]:
        """Return the areas whose journals are far longer than what they say, or whose doubts are cleared."""
        query = (
            "SELECT area FROM journals WHERE doubtful OR (place > :least AND place > 2 * :line * "
            "(SELECT COUNT(*) FROM artifacts WHERE artifacts.area = journals.area))"
        )
        with self.index.read() as rows:
            values = {"least": _LEAST_BYTES, "line": _LINE_BYTES}
            return [area for (area,) in rows.connection.execute(query, values)]

    def _compact(self, rows: Rows, area: str) -> None:
        # Of bytes that are still there it would be forgotten whose they were.
        if any(not rows.refers_to(area, there.sha256) for there in self._objects.stored(area)):
            return
        follower = Follower(rows.connection, self.root)
        follower.compact(area)
        follower.forget_doubts(area)

    @property
    def _objects(self) -> Objects:
        return Objects(self.root)
