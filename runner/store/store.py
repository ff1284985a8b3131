"""The one store: artifacts as records beside their bytes, over any back end of `runner.store.blobs`.

A put receives the bytes, then writes the record: with it the artifact is there, and the name is taken, since
the key of a file's record is its name. A removal takes the record first. So a crash at any moment leaves the
old state or the new one, and at most bytes without a record, of which a note says that they may go.

What a scope may have are the records below the prefixes of `places_for`. They are read once and remembered
by their etags, so that a second listing reads what changed.

Back ends wait for disks and servers, so every operation runs in a thread.

Source: requirements S1-9, S1-20, S1-27, S1-74; document 004, sections 5.2 to 5.6; rules ST1 to ST4 of the
conformance cases; `docs/decisions/0056-records-and-blobs-over-five-verbs.md`.
"""

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
from runner.store.areas import place_of, places_for
from runner.store.blobs import Blob, Blobs, Incoming, OrphanNote
from runner.store.checking import Check
from runner.store.content import StreamContent, problem_in, span
from runner.store.damage import damaged
from runner.store.entries import (
    DamagedEntry,
    Entry,
    is_again,
    key_of,
    mime_of,
    records_of,
    renewed,
    with_safe_name,
)
from runner.store.protocol import Content, Put, Reason, Record, Removal, Scope
from runner.store.retention import (
    KeptObservation,
    RetentionRules,
    check_quota,
    ends_at,
    has_ended,
    log_removals,
    make_room,
)
from runner.store.sources import opened
from runner.store.verifying import Damage, StoreVerdict
from runner.system.threads import in_thread, run_in_thread

__all__ = ["BlobStore", "lengths_of"]

_FULL = (
    "the disk of My Files is full (No space left on device); remove files that are no longer needed, "
    "or have more room made below the folder of the setting store; nothing was kept"
)
_ID_DIGITS = 12
_ATTEMPTS = 16
# A host takes milliseconds for a removal; what is older, by the server's clock, one left that died.
_SETTLED_AFTER = timedelta(minutes=15)
_REMEMBERED = 50_000
_USES = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Known:
    """The records of one area, as listed at one moment.

    Attributes:
        entries: Those that can be read, by key.
        unread: Keys of damaged ones.
        version: The back end's mark of them.
        at: When, by the monotonic clock.
    """

    entries: dict[str, Entry]
    unread: frozenset[str]
    version: object | None
    at: float


class BlobStore:
    """An `ArtifactStore` over blobs. Any number of processes, threads and hosts may have the same blobs.

    Args:
        blobs: The back end.
        rules: What may be kept.
        clock: The present time; by default that of the back end.
        fresh_s: How old a listing may be that a put relies on, where `blobs` cannot tell whether it changed.
    """

    def __init__(
        self,
        blobs: Blobs,
        rules: RetentionRules | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
        fresh_s: float = 0.0,
    ) -> None:
        self.blobs = blobs
        self.rules = rules or RetentionRules()
        self.clock = clock or blobs.now
        self._fresh_s = fresh_s
        self._check = Check()
        self._lock = threading.Lock()
        self._areas: OrderedDict[str, _Known] = OrderedDict()
        self._uses: OrderedDict[str, int] = OrderedDict()
        self._last = 0
        self._settled_after = _SETTLED_AFTER

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Keep bytes."""
        return await self._run("put", scope, lambda: self._put(content, len(content), about, scope))

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Keep text as UTF-8; `text/plain` unless `about` says otherwise."""
        return await self.put_bytes(text.encode(errors="replace"), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Keep a regular file, given by its path or by a descriptor, which is read from its start."""
        # The thread may begin when a caller that was cancelled has closed its descriptor.
        own = [os.dup(source)] if isinstance(source, int) else []

        def put() -> Record:
            with contextlib.ExitStack() as held:
                file: int | Path = source
                if isinstance(source, int):
                    file = own.pop()
                    held.callback(os.close, file)
                fd = held.enter_context(opened(file))
                return self._put(fd, os.fstat(fd).st_size, about, scope)

        try:
            return await self._run("put", scope, put)
        finally:
            while own:
                os.close(own.pop())

    @asynccontextmanager
    async def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it."""
        start, end = span(record.size, offset, length)
        async with in_thread(self._opened(record, scope, start, end)) as content:
            yield content

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id: a file before an observation, and of several the one put last."""

        def stat() -> Record | None:
            found = [entry for entry in self._visible(scope) if entry.record.id == id_]
            return max(found, key=lambda e: (e.record.metadata.is_file, e.put)).record if found else None

        return await self._run("find", scope, stat)

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name; of several, the one bound to the caller's session."""
        if safe_name(name) != name:
            return None

        def find() -> Record | None:
            found: list[Entry] = []
            with _as_call_errors():
                for place, owner in places_for(scope).items():
                    area = self._ready(place.area)
                    entry = self._read(f"{records_of(area, place)}files/{name}")
                    if entry is not None and self._is_alive(entry):
                        found.append(_owned(entry, owner))
            # The places of a scope come in order, its own first.
            own = sorted(found, key=lambda entry: entry.record.scope.session_id is None)
            return own[0].record if own else None

        return await self._run("find", scope, find)

    async def last_observation(self, name: str, *, scope: Scope) -> Record | None:
        """Return the newest observation of exactly that name."""

        def find() -> Record | None:
            named = [
                e for e in self._visible(scope) if e.record.name == name and not e.record.metadata.is_file
            ]
            return max(named, key=lambda entry: entry.put).record if named else None

        return await self._run("find", scope, find)

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may have, by name."""
        return await self._run("list", scope, lambda: _by_name(self._visible(scope)))

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`."""

        def sizes() -> builtins.list[int]:
            with _as_call_errors():
                known = self._known(self._ready(place_of(scope).area), self._fresh_s)
                return [*lengths_of(known.entries.values()).values()]

        return await self._run("list", scope, sizes)

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact: that name of it, or all of it; return whether there was one."""
        if name is not None and safe_name(name) != name:
            return False

        def matches(entry: Entry) -> bool:
            return entry.record.id == id_ and name in (None, entry.record.name)

        return await self._run("delete", scope, lambda: self._remove_visible(scope, matches))

    async def sweep(self) -> Sequence[Removal]:
        """Remove what has expired and what interrupted operations left behind; return what it was."""
        return await self._run("sweep", None, self._sweep)

    async def fault(self) -> str | None:
        """Return why files cannot be put and read now, after writing and listing a little; None: they can."""
        return await self._check.ask(self._fault)

    async def verify(self) -> StoreVerdict:
        """Read every content and hold it against its digest."""
        return await self._run("verify", None, lambda: self._examined(self._problem))

    def missing(self) -> Sequence[Damage]:
        """Return the artifacts whose bytes are missing or cut. Looks at the length of each; blocks."""
        return self._examined(self._wrong_size).damaged

    def unread(self) -> builtins.list[str]:
        """Return the keys of records that cannot be read; blocks."""
        return [key for area in self.blobs.areas() for key in sorted(self._known(area).unread)]

    def orphans(self) -> builtins.list[Blob]:
        """Return bytes of which no record is known; they are kept. Local stores only; blocks.

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
        """Do something in a thread; a back end may bound how long `operation` takes for one user."""
        return await run_in_thread(act)

    def _ready(self, area: str) -> str:
        """Return the prefix of an area, after its conversion from the layout of an earlier version."""
        prefix = self.blobs.prefix(area)
        self._convert(prefix)
        return prefix

    def _convert(self, prefix: str) -> None:
        """Convert what lies below a prefix from the layout of an earlier version."""

    # Putting.

    def _put(self, source: int | bytes, size: int, about: Put, scope: Scope) -> Record:
        place, about = place_of(scope), with_safe_name(about)
        if about.is_file:
            # Before it is copied: what is far too large is not to fill the disk first.
            check_quota(size, 0, self.rules.files)
        with _as_call_errors():
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
                        # Another host works on this very artifact.
                        time.sleep(0.02 * attempt)
                except BaseException:
                    if incoming.is_placed:
                        self._give_up(area, incoming.key)
                    raise
        raise CallError(Code.E_STORE, f"other hosts keep changing {about.name!r}; try again")

    def _receive(
        self, area: str, source: int | bytes, size: int, about: Put, scope: Scope
    ) -> AbstractContextManager[Incoming]:
        """Take in the bytes of a put."""
        return self.blobs.receive(area, source, about, scope)

    def _commit(
        self, area: str, about: Put, scope: Scope, incoming: Incoming, *, fresh_s: float
    ) -> tuple[Entry | None, builtins.list[Removal]]:
        """Write the record of received bytes. None: another host was faster with it; try again."""
        now, is_file = self.clock(), about.is_file
        known = self._known(area, fresh_s)
        removals = self._remove_ended(known)
        alive = [e for e in self._known(area, max(fresh_s, 1.0)).entries.values() if not e.is_gone]
        own = records_of(area, place_of(scope))
        same = [e for e in alive if e.key.startswith(own) and is_again(e.record, about, incoming.sha256)]
        old = max(same, key=lambda entry: entry.put, default=None)
        if is_file:
            try:
                self._check_quota(alive, incoming)
            except CallError as error:
                if error.code is not Code.E_QUOTA or not fresh_s:
                    raise
                # Nobody is refused by an old listing.
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
        """Delete the bytes of a put that failed, unless its record was written all the same."""
        with contextlib.suppress(CallError, OSError), self.blobs.exclusive(area):
            known = self._known(area)
            if not known.unread and all(entry.blob != key for entry in known.entries.values()):
                self.blobs.delete(key)

    def _bytes_for(self, incoming: Incoming, old: Entry | None, alive: Iterable[Entry]) -> str:
        """Return the key of bytes that are there, of this artifact or shared; else place the new ones."""
        candidates = [old] if old else []
        if self.blobs.shares:
            candidates += [each for each in alive if each.record.sha256 == incoming.sha256]
        for key in dict.fromkeys(each.blob for each in candidates):
            if self.blobs.stat(key) == incoming.size:
                return key
        incoming.place()
        return incoming.key

    def _write_new(self, area: str, entry: Entry) -> Entry | None:
        """Write a record unless there is one, a file's under the next name that is free."""
        record = entry.record
        if not entry.record.metadata.is_file:
            return self._write(
                replace(entry, key=key_of(area, place_of(record.scope), record)), if_absent=True
            )
        # What a session sees are its own files and those bound to none: no name twice among them.
        taken: set[str] = set()
        known = self._known(area, self._fresh_s)
        for scope in (record.scope, replace(record.scope, session_id=None)):
            owner = place_of(scope)
            if owner.area != place_of(record.scope).area:
                continue
            prefix = f"{records_of(area, owner)}files/"
            taken |= {
                key.removeprefix(prefix) for key in (*known.entries, *known.unread) if key.startswith(prefix)
            }
        while True:
            name = unique_name(str(record.metadata.name), taken)
            new = replace(entry, record=replace(record, name=name))
            new = replace(new, key=key_of(area, place_of(record.scope), new.record))
            written = self._write(new, if_absent=True)
            if written is not None:
                return written
            taken.add(name)
            other = self._read(new.key)
            if other is not None and is_again(other.record, record.metadata, record.sha256):
                return None

    def _check_quota(self, alive: Iterable[Entry], incoming: Incoming) -> None:
        lengths = lengths_of(alive)
        lengths.pop(incoming.sha256, None)
        check_quota(incoming.size, sum(lengths.values()), self.rules.files)

    def _room(
        self, area: str, alive: Iterable[Entry], old: Entry | None, scope: Scope, incoming: Incoming
    ) -> builtins.list[tuple[Entry, Reason]]:
        prefix = f"{records_of(area, place_of(scope))}observations/"
        entries = {e.key: e for e in alive if e.key.startswith(prefix) and (old is None or e.key != old.key)}
        held = [
            KeptObservation(
                key=key,
                size=e.record.size,
                trace=e.record.scope.trace_id,
                put=e.put,
                used=max(e.put, self._uses.get(key, 0)),
            )
            for key, e in entries.items()
        ]
        going = make_room(incoming.size, scope.trace_id, held, self.rules.observations)
        return [(entries[item.key], reason) for item, reason in going]

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
        """Return the present record of an artifact that a caller holds, if the caller may have it."""
        place = place_of(record.scope)
        if place not in places_for(scope):
            return None
        entry = self._read(key_of(self._ready(place.area), place, record))
        if entry is None or entry.record.id != record.id or not self._is_alive(entry):
            return None
        return _owned(entry, record.scope.owner)

    def _visible(self, scope: Scope) -> builtins.list[Entry]:
        """Return the records that a scope may have now."""
        found: builtins.list[Entry] = []
        with _as_call_errors():
            for place, owner in places_for(scope).items():
                area = self._ready(place.area)
                prefix = records_of(area, place)
                entries = [each for key, each in self._known(area).entries.items() if key.startswith(prefix)]
                found += [_owned(entry, owner) for entry in entries if self._is_alive(entry)]
        return found

    def _is_alive(self, entry: Entry) -> bool:
        return not entry.is_gone and not has_ended(entry.record.expires_at, now=self.clock())

    def _known(self, area: str, max_age_s: float = 0.0) -> _Known:
        """Return the records of an area; those that did not change are not read again."""
        version = self.blobs.version(area)
        with self._lock:
            before = self._areas.get(area)
        # A record that could not be read may be restored in its place, which leaves the folder as it is.
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
            # One that may not or cannot be read is not to keep anybody from all the others.
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
                len(self._areas) > 1 and sum(len(each.entries) for each in self._areas.values()) > _REMEMBERED
            ):
                self._areas.popitem(last=False)
        return known

    # Changing.

    def _remove_visible(self, scope: Scope, matches: Callable[[Entry], bool]) -> bool:
        """Remove each record that is meant and visible; return whether there was one."""
        done = False
        for _attempt in range(_ATTEMPTS):
            raced = False
            for entry in [e for e in self._visible(scope) if matches(e)]:
                with _as_call_errors(), self.blobs.exclusive(entry.area):
                    # As it is now that nobody else writes.
                    now = self._read(entry.key) if self.blobs.shares else entry
                    if now is None or not (matches(now) and self._is_alive(now)):
                        continue
                    is_removed = self._remove(_owned(now, entry.record.scope))
                    done, raced = done or is_removed, raced or not is_removed
            if not raced:
                return done
        raise CallError(Code.E_STORE, "other hosts keep changing this file; try again")

    def _write(self, entry: Entry, *, if_absent: bool = False) -> Entry | None:
        """Write a record; None: it is there already, or not as it was read."""
        condition = None if if_absent or self.blobs.shares else entry.etag
        blob = self.blobs.put(entry.key, entry.written(), if_absent=if_absent, if_match=condition)
        if blob is None:
            return None
        entry = replace(entry, etag=blob.etag)
        self._patch(entry.key, entry)
        return entry

    def _remove(self, entry: Entry) -> bool:
        """Remove a record, then its bytes; return whether it was as it was read."""
        note = self.blobs.retire(entry)
        if note is None:
            return False
        self._patch(entry.key, None)
        if not self._needed(entry.area, entry.blob):
            self.blobs.delete(entry.blob)
        self.blobs.delete(note)
        return True

    def _patch(self, key: str, entry: Entry | None) -> None:
        """Note a change of this process in what is remembered, so that it is not listed for it."""
        area = key.partition("records/")[0]
        with self._lock:
            known = self._areas.get(area)
            if known is None:
                return
            entries = {**known.entries, key: entry} if entry is not None else {**known.entries}
            if entry is None:
                entries.pop(key, None)
            # Exact where nobody else writes: the listing was checked within `exclusive`.
            version = self.blobs.version(area)
            self._areas[area] = replace(known, entries=entries, version=version)

    def _needed(self, area: str, key: str) -> bool:
        """Return whether a record needs these bytes; one that cannot be read may."""
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
        # One at a time: each is locked until the next is asked for, so no writer begins with it meanwhile.
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
        """Look at each content once, with a name that it goes by."""
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
                    # What went meanwhile is not damaged.
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
        """Return a number above all that this store gave before, on the scale of all hosts."""
        with self._lock:
            self._last = max(self._last + 1, int(self.blobs.now().timestamp() * 1e9))
            return self._last


def _owned(entry: Entry, owner: Scope) -> Entry:
    """Return a record as of the owner whom its key names; of the scope written in it the trace counts."""
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
    # Twelve digits are 48 bits: too few to trust, so other content with the same ones gets more.
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
