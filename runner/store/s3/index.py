"""The records in a bucket: which artifacts there are, whose, under which names, and until when.

Nothing is kept here that the bucket does not say, but for records already read: they are told apart by
the server's marks of their content, so what is remembered is never out of date.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from runner.formats.filenames import unique_name
from runner.store.areas import places_for
from runner.store.protocol import Retention, Scope
from runner.store.s3.bucket import Bucket, Listed
from runner.store.s3.entry import BucketEntry, DamagedRecord, read_entry, written
from runner.store.s3.keys import Marker, OwnerKeys, keys_of
from runner.store.s3.names import records_in, take_name

__all__ = ["PROBE", "S3Index"]

R = TypeVar("R")

PROBE = "=probe"
"""Key, below the prefix, of a small object that is written only to see whether that works."""

_REMEMBERED = 10_000
_AT_ONCE = 8
_THREADS = 32
_ID_DIGITS = 12


@dataclass(frozen=True, slots=True)
class S3Index:
    """The records of a store. All methods block and may be called from any thread.

    Attributes:
        bucket: Where they are.
        prefix: What all keys begin with.
    """

    bucket: Bucket
    prefix: str
    _read: "_Remembered" = field(default_factory=lambda: _Remembered())
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_THREADS, thread_name_prefix="s3-read")
    )

    def named(self, name: str, *, scope: Scope) -> Iterator[BucketEntry]:
        """Yield the files of a name that a scope may have, those bound to its session first."""
        for keys in self._keys_for(scope):
            found = self.load(records_in(list(self.bucket.list(keys.name(name)))))
            # Of two, the second was put by a host that is about to withdraw it.
            yield from sorted((self._latest(entry) for entry in found), key=lambda entry: entry.put)[:1]

    def with_id(self, id_: str, *, scope: Scope) -> list[BucketEntry]:
        """Return the artifacts of an id that a scope may have: files first, of each the one put last."""
        found = [
            self._latest(entry)
            for keys in self._keys_for(scope)
            for marker in self.markers(keys, id_)
            for entry in self._marked(keys, marker)
            if entry.record.id == id_
        ]
        return sorted(found, key=_rank, reverse=True)

    def of(self, scope: Scope) -> list[BucketEntry]:
        """Return all artifacts that a scope may have."""
        return [entry for keys in self._keys_for(scope) for entry in self.of_owner(keys)]

    def observations(self, scope: Scope) -> list[BucketEntry]:
        """Return the observations that a scope may have."""
        listed = [item for keys in self._keys_for(scope) for item in self.bucket.list(keys.note(""))]
        return [self._latest(entry) for entry in self.load(records_in(listed))]

    def of_owner(self, keys: OwnerKeys) -> list[BucketEntry]:
        """Return all artifacts of one owner."""
        listed = list(self.bucket.list(keys.index))
        lives = keys.life("")
        entries = self.load(records_in([item for item in listed if not item.key.startswith(lives)]))
        later = {item.key.removeprefix(lives): item for item in listed if item.key.startswith(lives)}
        return self.as_they_are(entries, later)

    def as_they_are(self, entries: Iterable[BucketEntry], lives: Mapping[str, Listed]) -> list[BucketEntry]:
        """Return entries in their later states, listed by token; without an end if that is damaged."""
        entries, unread = list(entries), list[Listed]()
        later = [lives[entry.token] for entry in entries if entry.token in lives]
        latest = {entry.token: entry for entry in self.load([item for item in later if item.size], unread)}
        latest |= {e.token: _without_end(e) for e in entries if lives.get(e.token) in unread}
        return [replace(latest.get(entry.token, entry), at=entry.at) for entry in entries]

    @property
    def probe(self) -> str:
        """Return the key that is written only to see whether that works."""
        return f"{self.prefix}{PROBE}"

    def marker_key(self, entry: BucketEntry) -> str:
        """Return the key of an artifact's marker."""
        files = entry.record.said.retention is Retention.FILES
        marker = Marker(id=entry.full_id, token=entry.token, name=entry.record.name if files else None)
        return keys_of(self.prefix, entry.record.scope).marker(marker)

    def markers(self, keys: OwnerKeys, id_: str) -> list[Marker]:
        """Return the markers of one owner whose ids begin with `id_`."""
        return [keys.read_marker(item.key, id_) for item in self.bucket.list(keys.ids(id_))]

    def same(self, keys: OwnerKeys, full_id: str) -> list[BucketEntry]:
        """Return the artifacts of one owner with this namespace and content."""
        marked = (self._marked(keys, marker) for marker in self.markers(keys, full_id))
        return [self._latest(entry) for entries in marked for entry in entries]

    def free_id(self, keys: OwnerKeys, full_id: str) -> str:
        """Return the id for content: as short as it may be, longer where other content has the same."""
        shortest = len(full_id) - 64 + _ID_DIGITS
        others = [m.id for m in self.markers(keys, full_id[:shortest]) if m.id != full_id]
        lengths = range(shortest, len(full_id) + 1, 4)
        clear = (full_id[:n] for n in lengths if not any(id_.startswith(full_id[:n]) for id_ in others))
        return next(clear, full_id)

    def add(self, entry: BucketEntry) -> BucketEntry:
        """Write an artifact down, a file under the name wanted or with a number; return it as written."""
        keys = keys_of(self.prefix, entry.record.scope)
        if entry.record.said.retention is Retention.OBSERVATIONS:
            new = replace(entry, at=keys.note(entry.token))
            self.bucket.put(self.marker_key(new), written(new))
            self.bucket.put(new.at, written(new))
            return new
        wanted = str(entry.record.said.name)
        # What a session sees are its own files and those bound to none: no name twice among them.
        taken = (
            self._names(keys_of(self.prefix, replace(entry.record.scope, session_id=None)))
            if (entry.record.scope.session_id is not None)
            else set()
        )
        while True:
            name = unique_name(wanted, taken)
            new = replace(entry, record=replace(entry.record, name=name))
            # It holds the record, too: should that be lost, it is made anew from here.
            self.bucket.put(self.marker_key(new), written(new))
            conditions = self.bucket.has_conditions(self.probe)
            if take_name(
                self.bucket, keys, name, token=entry.token, record=written(new), conditions=conditions
            ):
                return new
            self.bucket.delete(self.marker_key(new))
            taken = taken | self._names(keys) | {name}

    def has(self, entry: BucketEntry) -> bool:
        """Say whether an artifact is still written down."""
        return self._get(entry.at) is not None

    def change(self, entry: BucketEntry) -> None:
        """Write down a later state of an artifact."""
        self.bucket.put(keys_of(self.prefix, entry.record.scope).life(entry.token), written(entry))

    def remove(self, entry: BucketEntry) -> None:
        """Remove an artifact. The record before the bytes: what is left of it then, nobody finds.

        Before that an empty life says that it was removed, and after all of it goes: without it a sweep
        could not tell what is left of an artifact from one whose record is lost.
        """
        keys = keys_of(self.prefix, entry.record.scope)
        life = keys.life(entry.token)
        self.bucket.put(life, b"")
        for key in (entry.at, self.marker_key(entry), entry.record.key, life):
            self.bucket.delete(str(key))

    def load(self, listed: Iterable[Listed], unread: list[Listed] | None = None) -> list[BucketEntry]:
        """Return the entries of listed objects; those that are gone by now are left out.

        So are damaged ones, which are added to `unread`: none is to keep anybody from all the others.
        """
        found: list[BucketEntry | DamagedRecord | None] = []
        items = list(listed)
        # A few at a time: the threads are everybody's, and somebody else has only these few before him.
        for start in range(0, len(items), _AT_ONCE):
            each = [partial(copy_context().run, self._load, item) for item in items[start : start + _AT_ONCE]]
            found += self._threads.map(_run, each)
        if unread is not None:
            unread += [
                item for item, entry in zip(items, found, strict=True) if isinstance(entry, DamagedRecord)
            ]
        return [entry for entry in found if isinstance(entry, BucketEntry)]

    def _load(self, item: Listed) -> BucketEntry | DamagedRecord | None:
        try:
            return self._read.get((item.key, item.etag), lambda: self._get(item.key))
        except DamagedRecord as damaged:
            return damaged

    def _get(self, key: str) -> BucketEntry | None:
        content = self.bucket.get(key)
        return read_entry(content, key) if content else None

    def _latest(self, entry: BucketEntry) -> BucketEntry:
        try:
            later = self._get(keys_of(self.prefix, entry.record.scope).life(entry.token))
        except DamagedRecord:
            return _without_end(entry)
        return replace(later, at=entry.at) if later else entry

    def _marked(self, keys: OwnerKeys, marker: Marker) -> list[BucketEntry]:
        prefix = keys.note(marker.token) if marker.name is None else keys.name(marker.name)
        listed = records_in(list(self.bucket.list(prefix)))
        return [entry for entry in self.load(listed) if entry.token == marker.token]

    def _names(self, keys: OwnerKeys) -> set[str]:
        return {item.key.removeprefix(keys.names).split("/")[0] for item in self.bucket.list(keys.names)}

    def _keys_for(self, scope: Scope) -> Iterator[OwnerKeys]:
        return (OwnerKeys(self.prefix, place) for place in places_for(scope))


class _Remembered:
    """Entries read before, by key and mark; the longest unused go first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str], BucketEntry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, mark: tuple[str, str], read: Callable[[], BucketEntry | None]) -> BucketEntry | None:
        with self._lock:
            if mark in self._entries:
                self._entries.move_to_end(mark)
                return self._entries[mark]
        entry = read()
        if entry is not None:
            with self._lock:
                self._entries[mark] = entry
                while len(self._entries) > _REMEMBERED:
                    self._entries.popitem(last=False)
        return entry


def _run(work: Callable[[], R]) -> R:
    return work()


def _without_end(entry: BucketEntry) -> BucketEntry:
    """Return an entry that may have been renewed, nobody knows until when: it is not taken for ended."""
    return replace(entry, record=replace(entry.record, expires_at=None))


def _rank(entry: BucketEntry) -> tuple[bool, int]:
    return entry.record.said.retention is Retention.FILES, entry.put
