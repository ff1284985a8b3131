"""The one store: artifacts as records beside their bytes, over any back end of `runner.store.blobs`.

A put receives the bytes, then writes the record, which creates the artifact and claims its name: the key of
a file's record is its name. A removal deletes the record first. So a crash at any moment leaves the old
state or the new one, and at most bytes without a record, with a note that they may be deleted.

A scope may access the records below the prefixes of `places_for`. They are read once and cached by their
etags, so that a second listing reads only changes.

Back ends wait for disks and servers, so every operation runs in a thread.

Source: requirements S1-9, S1-20, S1-27, S1-74; document 004, sections 5.2 to 5.6; rules ST1 to ST4 of the
conformance cases; `docs/decisions/0056-records-and-blobs-over-five-verbs.md`.
"""

import asyncio
import builtins
import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TypeVar

from runner.errors import CallError, Code
from runner.formats.filenames import safe_name, unique_name
from runner.store.blobs import Blob, Blobs, Incoming, MemoryBlobs, OrphanNote
from runner.store.checking import Check
from runner.store.content import StreamContent, damaged, problem_in, span
from runner.store.entries import (
    DamagedEntry,
    Entry,
    is_again,
    key_of,
    mime_of,
    place_of,
    places_for,
    records_of,
    renewed,
    with_safe_name,
)
from runner.store.protocol import Content, Put, Reason, Record, Removal, Scope
from runner.store.reports import Damage, Meter, StoreFacts, StoreVerdict
from runner.store.retention import (
    Cleanup,
    RetentionRules,
    check_count,
    check_quota,
    ends_at,
    has_ended,
    log_removals,
    make_room,
)
from runner.store.sources import opened
from runner.system.threads import in_thread, run_in_thread

__all__ = ["BlobStore", "lengths_of"]

_FULL = (
    "the disk of My Files is full (No space left on device); remove files that are no longer needed, "
    "or have more room made below the folder of the setting store; nothing was kept"
)
_ID_DIGITS = 12
_ATTEMPTS = 16
# A removal takes milliseconds; any that is older, by the server's clock, is left from a host that died.
_SETTLED_AFTER = timedelta(minutes=15)
_REMEMBERED = 50_000
_USES = 10_000
_USERS = "users/"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Known:
    """The records of one area, as listed at one moment.

    Attributes:
        entries: Those that can be read, by key.
        unread: Keys of damaged ones.
        version: The back end's version of them.
        at: Time of the listing, by the monotonic clock.
    """

    entries: dict[str, Entry]
    unread: frozenset[str]
    version: object | None
    at: float


class BlobStore:
    """An `ArtifactStore` over blobs. Any number of processes, threads and hosts may share the blobs.

    Args:
        blobs: The back end; by default memory, which ends with the process.
        rules: Retention rules.
        clock: Returns the current time; by default that of the back end.
        fresh_s: Maximum age in seconds of a listing that a put relies on, if `blobs` cannot detect changes.
        most_remembered: Most records in the cache of all areas; the largest area goes first.
    """

    def __init__(
        self,
        blobs: Blobs | None = None,
        rules: RetentionRules | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
        fresh_s: float = 0.0,
        most_remembered: int = _REMEMBERED,
    ) -> None:
        self.blobs = MemoryBlobs() if blobs is None else blobs
        self.rules = rules or RetentionRules()
        self.clock = clock or self.blobs.now
        self._fresh_s = fresh_s
        self._most_remembered = most_remembered
        self._check = Check()
        self._meter = Meter()
        self._lock = threading.Lock()
        self._areas: OrderedDict[str, _Known] = OrderedDict()
        self._uses: OrderedDict[str, int] = OrderedDict()
        self._last = 0
        self._settled_after = _SETTLED_AFTER
        self._converting: dict[str, threading.Lock] = {}
        self._converted: set[str] = set()

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Store bytes."""
        return await self._run("put", scope, lambda: self._put(content, len(content), about, scope))

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Store text as UTF-8; `text/plain` unless `about` has another type."""
        return await self.put_bytes(text.encode(errors="replace"), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Store a regular file, given by its path or by a descriptor, which is read from its start."""
        file = contextlib.ExitStack()
        fd = file.enter_context(opened(source))
        # The thread closes it, as it may go on after its caller was cancelled; if it never starts, we do.
        unclosed = [file]

        def put() -> Record:
            with unclosed.pop():
                return self._put(fd, os.fstat(fd).st_size, about, scope)

        try:
            return await self._run("put", scope, put)
        finally:
            while unclosed:
                unclosed.pop().close()

    @asynccontextmanager
    async def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it."""
        start, end = span(record.size, offset, length)
        async with in_thread(self._opened(record, scope, start, end)) as content:
            yield content

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id: a file rather than an observation; of several, the one put last."""

        def stat() -> Record | None:
            found = self._visible(scope, lambda entry: entry.record.id == id_)
            return max(found, key=lambda e: (e.record.metadata.is_file, e.put)).record if found else None

        return await self._run("find", scope, stat)

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name; of several, the one bound to the caller's session."""
        if safe_name(name) != name:
            return None

        def find() -> Record | None:
            # The places of a scope are in order, its own first.
            own = sorted(self._named(scope, name), key=lambda entry: entry.record.scope.session_id is None)
            return own[0].record if own else None

        return await self._run("find", scope, find)

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may access, by name."""
        return await self._run("list", scope, lambda: _by_name(self._visible(scope)))

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`."""

        def sizes() -> builtins.list[int]:
            with _as_call_errors():
                known = self._known(self._ready(place_of(scope).area), self._fresh_s)
                return [*lengths_of(known.entries.values()).values()]

        return await self._run("list", scope, sizes)

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact, or only one name of it; return whether there was one."""
        if name is not None and safe_name(name) != name:
            return False

        def matches(entry: Entry) -> bool:
            return entry.record.id == id_ and name in (None, entry.record.name)

        return await self._run("delete", scope, lambda: self._remove_visible(scope, matches, name))

    async def sweep(self) -> Sequence[Removal]:
        """Remove expired artifacts and leftovers of interrupted operations; return the removals."""
        return await self._run("sweep", None, self._sweep)

    async def fault(self) -> str | None:
        """Write a blob and list; return why files cannot be put and read now; None: they can."""
        return await self._check.ask(self._fault)

    async def verify(self) -> StoreVerdict:
        """Read every content and verify its digest."""
        return await self._run("verify", None, lambda: self._examined(self._problem))

    async def measure(self) -> StoreFacts:
        """Return the stored bytes, and the number of failed puts."""
        return await asyncio.to_thread(self._meter.facts, self.blobs.stored_bytes)

    async def users(self) -> Sequence[str]:
        """Return the users with stored artifacts, as the path segments of their names; not for a bucket."""

        def users() -> builtins.list[str]:
            self._convert("")
            areas = [area for area in self.blobs.areas() if area.startswith(_USERS)]
            return [area[len(_USERS) : -1] for area in areas if self._known(area).entries]

        return await self._run("list", None, users)

    async def all_of(self, user: str) -> Sequence[Record]:
        """Return all artifacts of a user, of every session, observations included."""

        def all_of() -> builtins.list[Record]:
            found = self._known(self._ready(place_of(Scope(user_id=user)).area)).entries.values()
            return [each.record for each in sorted(filter(self._is_alive, found), key=lambda e: e.put)]

        return await self._run("list", None, all_of)

    def missing(self) -> Sequence[Damage]:
        """Return the artifacts whose bytes are missing or truncated, judged by their lengths; blocks."""
        return self._examined(self._wrong_size).damaged

    def unread(self) -> builtins.list[str]:
        """Return the keys of records that cannot be read; blocks."""
        return [key for area in self.blobs.areas() for key in sorted(self._known(area).unread)]

    def orphans(self) -> builtins.list[Blob]:
        """Return blobs that no record refers to; they are kept. Local stores only; blocks.

        Raises:
            OSError: They cannot be listed.
        """
        found: builtins.list[Blob] = []
        for area in self.blobs.areas():
            with self.blobs.exclusive(area):
                known = {entry.blob for entry in self._known(area).entries.values()}
                known |= {leftover.blob for leftover in self.blobs.leftovers(area)}
                there = [*self.blobs.scan(f"{area}objects/"), *self.blobs.scan(f"{area}quarantine/")]
            found += [blob for blob in there if blob.key not in known]
        return found

    async def _run(self, operation: str, scope: Scope | None, act: Callable[[], T]) -> T:
        """Run a function in a thread; a back end may limit how long `operation` takes for one user."""
        return await run_in_thread(act)

    def _ready(self, area: str) -> str:
        """Return the prefix of an area, after its conversion from the layout of an earlier version."""
        prefix = self.blobs.prefix(area)
        self._convert(prefix)
        return prefix

    def _convert(self, prefix: str) -> None:
        """Convert what is below a prefix from the layout of an earlier version, once."""
        if prefix not in self._converted:
            # One lock per prefix: a silent server of one user must not block other users.
            with self._converting.setdefault(prefix, threading.Lock()):
                if prefix not in self._converted:
                    self._convert_layout(prefix)
                    self._converted.add(prefix)

    def _convert_layout(self, prefix: str) -> None:
        """Perform the conversion."""
        self.blobs.convert(prefix)

    # Putting.

    def _put(self, source: int | bytes, size: int, about: Put, scope: Scope) -> Record:
        place, about = place_of(scope), with_safe_name(about)
        if about.is_file:
            # Before the copy: an oversized file must not fill the disk first.
            check_quota(size, 0, self.rules.files)
        with self._meter.counting(), _as_call_errors():
            area = self._ready(place.area)
            with self._receive(area, source, size, about, scope) as incoming:
                try:
                    for attempt in range(_ATTEMPTS):
                        with self.blobs.exclusive(area):
                            entry, removals = self._commit(
                                area, about, scope, incoming, fresh_s=0.0 if attempt else self._fresh_s
                            )
                        log_removals(removals)
                        if entry is not None:
                            if incoming.is_placed and entry.blob != incoming.key:
                                self.blobs.delete(incoming.key)
                            return entry.record
                        # Another host is changing this artifact.
                        time.sleep(0.02 * attempt)
                except BaseException:
                    if incoming.is_placed:
                        self._give_up(area, incoming.key)
                    raise
            raise CallError(Code.E_STORE, f"other hosts keep changing {about.name!r}; try again")

    def _receive(
        self, area: str, source: int | bytes, size: int, about: Put, scope: Scope
    ) -> AbstractContextManager[Incoming]:
        """Receive the bytes of a put."""
        return self.blobs.receive(area, source, about, scope)

    def _commit(
        self, area: str, about: Put, scope: Scope, incoming: Incoming, *, fresh_s: float
    ) -> tuple[Entry | None, builtins.list[Removal]]:
        """Write the record of received bytes. None: another host was faster; try again."""
        now, is_file = self.clock(), about.is_file
        known = self._known(area, fresh_s)
        removals = self._remove_ended(known)
        alive = [e for e in self._known(area, max(fresh_s, 1.0)).entries.values() if not e.is_gone]
        own = records_of(area, place_of(scope))
        same = [e for e in alive if e.key.startswith(own) and is_again(e.record, about, incoming.sha256)]
        old = max(same, key=lambda entry: entry.put, default=None)
        if is_file:
            lengths = lengths_of(alive)
            lengths.pop(incoming.sha256, None)
            try:
                if old is None:
                    check_count(sum(e.record.metadata.is_file for e in alive), self.rules.files)
                check_quota(incoming.size, sum(lengths.values()), self.rules.files)
            except CallError as error:
                if error.code is not Code.E_QUOTA or not fresh_s:
                    raise
                # A put must not be refused because of an old listing.
                return self._commit(area, about, scope, incoming, fresh_s=0.0)
        going = [] if is_file else self._room(area, alive, old, scope, incoming)

        metadata = about if old is None else renewed(about, old.record.metadata)
        entry = Entry(
            record=Record(
                id=old.record.id if old else _free_id(about.id_prefix, incoming.sha256, alive),
                name=old.record.name if old and is_file else metadata.name,
                mime=mime_of(replace(metadata, name=about.name)),
                size=incoming.size,
                sha256=incoming.sha256,
                scope=scope,
                metadata=metadata,
                created=now,
                expires_at=ends_at(metadata, now=now, rules=self.rules),
            ),
            blob=self._bytes_for(incoming, old, alive),
            put=self._next(),
            etag=old.etag if old else "",
        )
        if not self.blobs.shares:
            entry = replace(entry, record=replace(entry.record, key=entry.blob))
        if old is not None:
            written = self._write(replace(entry, key=old.key))
        else:
            written = self._write_new(area, entry)
        if written is None:
            return None, removals
        if old is not None and old.blob != written.blob and not self._needed(area, old.blob):
            self.blobs.delete(old.blob)
        removals += [_removal(each, reason) for each, reason in going if self._remove(each)]
        return written, removals

    def _give_up(self, area: str, key: str) -> None:
        """Delete the bytes of a put that failed, unless its record was written nevertheless."""
        with contextlib.suppress(CallError, OSError), self.blobs.exclusive(area):
            known = self._known(area)
            if not known.unread and all(entry.blob != key for entry in known.entries.values()):
                self.blobs.delete(key)

    def _bytes_for(self, incoming: Incoming, old: Entry | None, alive: Iterable[Entry]) -> str:
        """Return the key of existing bytes, of this artifact or shared; else place the new ones."""
        candidates = [old] if old else []
        if self.blobs.shares:
            candidates += [each for each in alive if each.record.sha256 == incoming.sha256]
        for key in dict.fromkeys(each.blob for each in candidates):
            if self.blobs.stat(key) == incoming.size:
                return key
        incoming.place()
        return incoming.key

    def _write_new(self, area: str, entry: Entry) -> Entry | None:
        """Write a record unless it exists; a file's under the next free name."""
        record = entry.record
        if not entry.record.metadata.is_file:
            return self._write(
                replace(entry, key=key_of(area, place_of(record.scope), record)), if_absent=True
            )
        # A session sees its own files and those bound to none: names are unique among them.
        taken: set[str] = set()
        known, place = self._known(area, self._fresh_s), place_of(record.scope)
        for owner in (place, place._replace(session="")):
            prefix = f"{records_of(area, owner)}files/"
            taken |= {
                key.removeprefix(prefix) for key in (*known.entries, *known.unread) if key.startswith(prefix)
            }
        while True:
            name = unique_name(str(record.metadata.name), taken)
            new = replace(entry, record=replace(record, name=name))
            new = replace(new, key=key_of(area, place, new.record))
            written = self._write(new, if_absent=True)
            if written is not None:
                return written
            taken.add(name)
            other = self._read(new.key)
            if other is not None and is_again(other.record, record.metadata, record.sha256):
                return None

    def _room(
        self, area: str, alive: Iterable[Entry], old: Entry | None, scope: Scope, incoming: Incoming
    ) -> builtins.list[tuple[Entry, Reason]]:
        prefix = f"{records_of(area, place_of(scope))}observations/"
        held = [e for e in alive if e.key.startswith(prefix) and (old is None or e.key != old.key)]
        budgets = self.rules.observations
        uses = {} if budgets.cleanup_strategy is Cleanup.FIFO else self._uses
        held.sort(key=lambda e: max(e.put, uses.get(e.key, 0)))
        return make_room(incoming.size, scope.trace_id, held, budgets)

    # Reading.

    @contextmanager
    def _opened(self, record: Record, scope: Scope, start: int, end: int) -> Iterator[StreamContent]:
        with contextlib.ExitStack() as held:
            with _as_call_errors():
                entry = self._entry_of(record, scope)
                if entry is None:
                    message = f"the file {record.shown!r} is no longer stored"
                    raise CallError(
                        Code.E_FILE_NOT_FOUND, message, details={"name": record.name, "id": record.id}
                    )
                try:
                    content = held.enter_context(self.blobs.content(entry, start, end))
                except FileNotFoundError as error:
                    raise damaged(record, "its bytes are missing from the store") from error
                if not entry.record.metadata.is_file:
                    self._note_use(entry.key)
            yield content

    def _entry_of(self, record: Record, scope: Scope) -> Entry | None:
        """Return the current version of a caller's record, if the caller may access it."""
        place = place_of(record.scope)
        if place not in places_for(scope):
            return None
        entry = self._read(key_of(self._ready(place.area), place, record))
        if entry is None or entry.record.id != record.id or not self._is_alive(entry):
            return None
        return _owned(entry, record.scope.owner)

    def _named(self, scope: Scope, name: str) -> builtins.list[Entry]:
        """Return the files of exactly that name that a scope may access now, without a listing."""
        found: builtins.list[Entry] = []
        with _as_call_errors():
            for place, owner in places_for(scope).items():
                entry = self._read(f"{records_of(self._ready(place.area), place)}files/{name}")
                if entry is not None and self._is_alive(entry):
                    found.append(_owned(entry, owner))
        return found

    def _visible(
        self, scope: Scope, matches: Callable[[Entry], bool] = lambda _: True
    ) -> builtins.list[Entry]:
        """Return the records that match and that a scope may access now."""
        found: builtins.list[Entry] = []
        with _as_call_errors():
            for place, owner in places_for(scope).items():
                area = self._ready(place.area)
                prefix = records_of(area, place)
                entries = [each for key, each in self._known(area).entries.items() if key.startswith(prefix)]
                found += [_owned(each, owner) for each in entries if matches(each) and self._is_alive(each)]
        return found

    def _is_alive(self, entry: Entry) -> bool:
        return not entry.is_gone and not has_ended(entry.record.expires_at, now=self.clock())

    def _known(self, area: str, max_age_s: float = 0.0) -> _Known:
        """Return the records of an area; only changed ones are read again."""
        version = self.blobs.version(area)
        with self._lock:
            before = self._areas.get(area)
        # An unreadable record may be restored in place, which does not change the folder.
        if before is not None and version is not None and before.version == version and not before.unread:
            return before
        if before is not None and version is None and time.monotonic() - before.at < max_age_s:
            return before
        held = {} if before is None else before.entries
        blobs = builtins.list(self.blobs.scan(f"{area}records/"))
        fresh = [blob for blob in blobs if blob.key not in held or held[blob.key].etag != blob.etag]
        read = dict(zip((blob.key for blob in fresh), self.blobs.map(self._parsed, fresh), strict=True))
        entries, unread = dict[str, Entry](), set[str]()
        for blob in blobs:
            entry = read[blob.key] if blob.key in read else held[blob.key]
            if isinstance(entry, Entry):
                entries[blob.key] = entry
            elif entry is not None:
                unread.add(blob.key)
        return self._remember(area, _Known(entries, frozenset(unread), version, time.monotonic()))

    def _parsed(self, blob: Blob) -> Entry | DamagedEntry | None:
        try:
            found = self.blobs.get(blob.key)
            return None if found is None else Entry.read(found[0], key=blob.key, etag=found[1])
        except DamagedEntry as damage:
            return damage
        except OSError as error:
            # One record that may not or cannot be read must not make all others inaccessible.
            return DamagedEntry(str(error.strerror))

    def _read(self, key: str) -> Entry | None:
        found = self.blobs.get(key)
        if found is None:
            return None
        with contextlib.suppress(DamagedEntry):
            return Entry.read(found[0], key=key, etag=found[1])
        return None

    def _remember(self, area: str, known: _Known) -> _Known:
        with self._lock:
            self._areas[area] = known
            self._areas.move_to_end(area)
            while (
                len(self._areas) > 1
                and sum(len(each.entries) for each in self._areas.values()) > self._most_remembered
            ):
                # Of equal ones the least recently used. One user's records displace no other user's.
                del self._areas[max(self._areas, key=lambda area: len(self._areas[area].entries))]
        return known

    # Changing.

    def _remove_visible(self, scope: Scope, matches: Callable[[Entry], bool], name: str | None) -> bool:
        """Remove each visible record that matches, with that name; return whether there was one."""
        done = False
        for _attempt in range(_ATTEMPTS):
            raced = False
            # A session may end with thousands of files, and a listing for each would take an hour.
            named = [] if name is None else [e for e in self._named(scope, name) if matches(e)]
            for entry in named or self._visible(scope, matches):
                with _as_call_errors(), self.blobs.exclusive(entry.area):
                    # Read again: within `exclusive` nobody else writes.
                    now = self._read(entry.key) if self.blobs.shares else entry
                    if now is None or not (matches(now) and self._is_alive(now)):
                        continue
                    is_removed = self._remove(_owned(now, entry.record.scope))
                    done, raced = done or is_removed, raced or not is_removed
            if not raced:
                return done
        raise CallError(Code.E_STORE, "other hosts keep changing this file; try again")

    def _write(self, entry: Entry, *, if_absent: bool = False) -> Entry | None:
        """Write a record; None: it exists already, or has changed since it was read."""
        condition = None if if_absent or self.blobs.shares else entry.etag
        blob = self.blobs.put(entry.key, entry.written(), if_absent=if_absent, if_match=condition)
        if blob is None:
            return None
        entry = replace(entry, etag=blob.etag)
        self._patch(entry.key, entry)
        return entry

    def _remove(self, entry: Entry) -> bool:
        """Remove a record, then its bytes; return whether it was unchanged since it was read."""
        note = self.blobs.retire(entry)
        if note is None:
            return False
        self._patch(entry.key, None)
        if not self._needed(entry.area, entry.blob):
            self.blobs.delete(entry.blob)
        self.blobs.delete(note)
        return True

    def _patch(self, key: str, entry: Entry | None) -> None:
        """Apply a change by this process to the cached records, so that no new listing is needed."""
        area = key.partition("records/")[0]
        with self._lock:
            known = self._areas.get(area)
            if known is None:
                return
            entries = {**known.entries, key: entry} if entry is not None else {**known.entries}
            if entry is None:
                entries.pop(key, None)
            # Exact if nobody else writes: the listing was checked within `exclusive`.
            version = self.blobs.version(area)
            self._areas[area] = replace(known, entries=entries, version=version)

    def _needed(self, area: str, key: str) -> bool:
        """Return whether a record needs these bytes; an unreadable record may need them."""
        if not self.blobs.shares:
            return False
        known = self._known(area)
        return bool(known.unread) or any(entry.blob == key for entry in known.entries.values())

    def _sweep(self) -> builtins.list[Removal]:
        removals: builtins.list[Removal] = []
        with _as_call_errors():
            self._convert("")
            for area in self.blobs.areas():
                self._convert(area)
                with self.blobs.exclusive(area):
                    removals += self._sweep_area(area)
        log_removals(removals)
        return removals

    def _remove_ended(self, known: _Known) -> builtins.list[Removal]:
        now = self.clock()
        ended = [
            e for e in known.entries.values() if has_ended(e.record.expires_at, now=now) and not e.is_gone
        ]
        return [_removal(entry, Reason.EXPIRED) for entry in ended if self._remove(entry)]

    def _sweep_area(self, area: str) -> builtins.list[Removal]:
        removals = self._remove_ended(self._known(area))
        ago = int((self.blobs.now() - self._settled_after).timestamp() * 1e9)
        gone = [e for e in self._known(area, 1.0).entries.values() if e.is_gone and e.put < ago]
        # One at a time: each is locked until the next is requested, so no writer starts using it meanwhile.
        for left in chain((OrphanNote(note=e.key, blob=e.blob) for e in gone), self.blobs.leftovers(area)):
            size = self.blobs.stat(left.blob)
            known = self._known(area, 1.0)
            if known.unread and self.blobs.shares:
                continue
            if any(e.blob == left.blob and not e.is_gone for e in known.entries.values()):
                size = None
            if size is not None:
                self.blobs.delete(left.blob)
            elif (half := self.blobs.stat(left.note)) and "/incoming/" in left.note:
                size = half
            self.blobs.delete(left.note)
            self._patch(left.note, None)
            if size is not None:
                what = f"{self.blobs.named(area)}/{left.blob.removeprefix(area)}"
                removals.append(Removal(what=what, name=None, size=size, reason=Reason.LEFT_BEHIND))
        return removals

    def _fault(self) -> str | None:
        try:
            with _as_call_errors():
                self.blobs.check()
        except CallError as error:
            return error.message
        return None

    def _examined(self, problem: Callable[[Entry], str | None]) -> StoreVerdict:
        """Examine each content once, under one of its names."""
        verdict = StoreVerdict()
        with _as_call_errors():
            self._convert("")
            for area in [*self.blobs.areas()]:
                self._convert(area)
                known = self._known(area)
                for key in known.unread:
                    verdict.count(key.rpartition("/")[2], self.blobs.named(area), 0, "its record is damaged")
                for entry in {e.blob: e for e in known.entries.values() if not e.is_gone}.values():
                    found = problem(entry)
                    now = self._read(entry.key) if found else entry
                    # An artifact removed meanwhile is not damaged.
                    if now is not None and now.blob == entry.blob and not now.is_gone:
                        verdict.count(entry.record.shown, self.blobs.named(area), entry.record.size, found)
        return verdict

    def _problem(self, entry: Entry) -> str | None:
        wrong = self._wrong_size(entry)
        if wrong is not None:
            return wrong
        try:
            with self.blobs.content(entry, 0, entry.record.size) as content:
                return problem_in(content, entry.record)
        except FileNotFoundError:
            return "its bytes are missing"

    def _wrong_size(self, entry: Entry) -> str | None:
        size = self.blobs.stat(entry.blob)
        if size is None:
            return "its bytes are missing"
        return None if size == entry.record.size else f"{size} of its {entry.record.size} bytes are there"

    def _note_use(self, key: str) -> None:
        now = self._next()
        with self._lock:
            self._uses[key] = now
            self._uses.move_to_end(key)
            while len(self._uses) > _USES:
                self._uses.popitem(last=False)

    def _next(self) -> int:
        """Return a number above all earlier ones of this store, comparable with those of other hosts."""
        with self._lock:
            self._last = max(self._last + 1, int(self.blobs.now().timestamp() * 1e9))
            return self._last


def _owned(entry: Entry, owner: Scope) -> Entry:
    """Return a record with the owner that its key names; only the trace is taken from the stored scope."""
    scope = replace(owner, trace_id=entry.record.scope.trace_id)
    return entry if scope == entry.record.scope else replace(entry, record=replace(entry.record, scope=scope))


def _removal(entry: Entry, reason: Reason) -> Removal:
    record = entry.record
    return Removal(what=record.id, name=record.name, size=record.size, reason=reason)


def _by_name(entries: Iterable[Entry]) -> list[Record]:
    order = sorted(entries, key=lambda e: (e.record.name is None, e.record.name or "", e.put))
    return [entry.record for entry in order]


def lengths_of(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the length of each content of files, by digest."""
    return {e.record.sha256: e.record.size for e in entries if e.record.metadata.is_file and not e.is_gone}


def _free_id(prefix: str, sha256: str, alive: Iterable[Entry]) -> str:
    # Twelve digits are 48 bits, which may collide, so other content with the same digits gets more.
    taken = {entry.record.id for entry in alive if entry.record.sha256 != sha256}
    digits = range(_ID_DIGITS, len(sha256) + 1, 4)
    return next(id_ for id_ in (prefix + sha256[:count] for count in digits) if id_ not in taken)


@contextmanager
def _as_call_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EDQUOT:
            raise CallError(Code.E_QUOTA, "the disk quota is used up; remove files and try again") from error
        if error.errno == errno.ENOSPC:
            raise CallError(Code.E_STORE, _FULL) from error
        raise CallError(Code.E_STORE, f"My Files cannot be used: {error.strerror or error}") from error
