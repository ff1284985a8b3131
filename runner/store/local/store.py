"""The local store: artifacts on this machine's disk, found again whole or not at all. The default.

The bytes are in `runner.store.local.objects`, what is said of them in the journal beside them
(`runner.store.local.journal`) and, to be asked quickly, in `runner.store.local.index`. A put copies the bytes
and waits until they are on disk, then gives them their place and their row in one change, whose lock also
keeps a removal from deleting bytes that another process is just about to refer to. So there is never a row
without its bytes, and whatever is interrupted leaves at most bytes without a row:
`runner.store.local.orphans` has those.

SQLite waits for locks and disks make one wait, so every operation runs in a thread.

Source: requirements S1-9, S1-20, S1-27, S1-74; document 004, sections 5.2 to 5.6; `docs/store.md`.
"""

import asyncio
import contextlib
import errno
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from runner.errors import CallError, Code
from runner.formats.filenames import safe_name
from runner.observation.store_facts import StoreFacts
from runner.store.areas import OwnerPlace, place_of, places_for
from runner.store.checking import Check
from runner.store.content import FileContent, span
from runner.store.damage import damaged
from runner.store.disk import try_to_write
from runner.store.local.index import Index, IndexMadeAnew
from runner.store.local.journal import Journal
from runner.store.local.objects import Objects
from runner.store.local.orphans import Orphans
from runner.store.local.reserve import Reserve, is_unwritten
from runner.store.local.row import Bytes, Row
from runner.store.measuring import Meter
from runner.store.protocol import Content, Put, Reason, Record, Removal, Retention, Scope
from runner.store.removals import log_removals
from runner.store.retention import RetentionRules, check_quota, has_ended
from runner.store.sources import opened
from runner.store.verifying import StoreVerdict
from runner.system.threads import in_thread, run_in_thread

__all__ = ["LocalStore", "MissingBytes", "utc_now"]

_FULL = (
    "the disk of My Files is full (No space left on device); remove files that are no longer needed, "
    "or have more room made below the folder of the setting store; nothing was kept"
)

_ATTEMPTS = 4
_USERS = "users/"

P = ParamSpec("P")
R = TypeVar("R")


def utc_now() -> datetime:
    """Return the clock's time."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBytes:
    """A row whose bytes are not there, or not all of them. Nothing a crash can make; somebody did.

    Attributes:
        shown: Name of the file, or id of the observation.
        area: Folder of its owner, relative to the store's.
        problem: What is wrong.
    """

    shown: str
    area: str
    problem: str


@dataclass(frozen=True, slots=True)
class LocalStore:
    """An `ArtifactStore` below one folder. Any number of processes and threads may have the same.

    Attributes:
        root: The folder of the store; made on first use.
        rules: What may be kept.
        clock: Says the present time.
        unwritten: Whether nothing may be written, even to read; on a full disk it does so by itself.
    """

    root: Path
    rules: RetentionRules = field(default_factory=RetentionRules)
    clock: Callable[[], datetime] = utc_now
    unwritten: bool = False
    _check: Check = field(default_factory=Check, init=False, repr=False, compare=False)
    _meter: Meter = field(default_factory=Meter, init=False, repr=False, compare=False)

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Keep bytes."""
        with self._meter.counting():
            return await run_in_thread(_tried, self._put, content, len(content), about, scope)

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Keep text as UTF-8."""
        return await self.put_bytes(text.encode(), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Keep a regular file."""
        with self._meter.counting():
            return await run_in_thread(_tried, self._put_file, source, about, scope)

    @asynccontextmanager
    async def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[Content]:
        """Open the bytes of a record, or a range of them."""
        start, end = span(record.size, offset, length)
        async with in_thread(self._opened(record, scope)) as fd:
            yield FileContent(fd=fd, start=start, end=end, record=record)

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id."""
        return await run_in_thread(self._read, LocalStore._stat, id_, scope)

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name."""
        return await run_in_thread(self._read, LocalStore._find, name, scope)

    async def last_observation(self, name: str, *, scope: Scope) -> Record | None:
        """Return the newest observation of exactly that name."""
        return await run_in_thread(self._read, LocalStore._last_observation, name, scope)

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may have, by name."""
        return await run_in_thread(self._read, LocalStore._list, scope)

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`."""
        return await run_in_thread(self._read, LocalStore._sizes, scope)

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact: that name of it, or all of it."""
        return await run_in_thread(self._surely, self._delete, id_, scope, name)

    async def touch(self, id_: str, *, scope: Scope, expires_at: datetime | None = None) -> bool:
        """Renew the lifetime of an observation, or let any artifact end at `expires_at`."""
        return await run_in_thread(self._surely, self._touch, id_, scope, expires_at)

    async def sweep(self) -> Sequence[Removal]:
        """Remove what has expired and what interrupted operations left behind."""
        return await run_in_thread(self._surely, self._sweep)

    async def measure(self) -> StoreFacts:
        """Return how much is kept, and how often a file was not taken."""
        kept = await asyncio.to_thread(self._meter.kept, lambda: self._read(LocalStore._kept_bytes))
        return StoreFacts(kept_bytes=kept, failed_puts=self._meter.failed_puts)

    def _kept_bytes(self) -> int:
        with _as_call_errors(), self._index.read() as rows:
            return rows.kept_bytes()

    async def users(self) -> Sequence[str]:
        """Return the areas of users who have anything here, as the segments of their names."""
        return await run_in_thread(self._read, LocalStore._users)

    async def all_of(self, user: str) -> Sequence[Record]:
        """Return all that a user has here, of every session, observations too."""
        return await run_in_thread(self._read, LocalStore._all_of, user)

    def _users(self) -> Sequence[str]:
        with _as_call_errors(), self._index.read() as rows:
            areas = rows.areas()
        return [area.removeprefix(_USERS) for area in areas if area.startswith(_USERS)]

    def _all_of(self, user: str) -> Sequence[Record]:
        area = place_of(Scope(user_id=user)).area
        with _as_call_errors(), self._index.read([area]) as rows:
            found, now = rows.of_area(area), self.clock()
        records = []
        for row in found:
            session = row.session.removeprefix(":") if row.session else None
            records.append(
                row.record({OwnerPlace(area, row.session): Scope(user_id=user, session_id=session)})
            )
        return [record for record in records if not has_ended(record.expires_at, now=now)]

    async def check(self) -> None:
        """Read all of the index; where it is missing or damaged, it is made anew from the journals.

        Raises:
            CallError: `E_STORE`: it cannot be read or made.
        """
        await run_in_thread(self._surely, self._check_index)

    async def fault(self) -> str | None:
        """Say whether files can be put and read now, by looking into the index and writing a little."""
        return await self._check.ask(self._fault)

    def missing(self) -> Sequence[MissingBytes]:
        """Return the artifacts whose bytes are not what the index says. Looks at every file's length."""
        with _as_call_errors():
            with self._index.read() as rows:
                needed = list(rows.all_bytes())
            # Looked at after the rows: what came since has its bytes, what went since is asked again.
            found = {(there.area, there.sha256): there.size for there in self._objects.stored()}
            sizes = [(shown, content, found.get((content.area, content.sha256))) for shown, content in needed]
            return [
                _missing(shown, content, size)
                for shown, content, size in sizes
                if size != content.size and self._is_needed(content)
            ]

    async def verify(self) -> StoreVerdict:
        """Read every content and hold it against its digest."""
        return await run_in_thread(self._read, LocalStore._verify)

    def _verify(self) -> StoreVerdict:
        verdict = StoreVerdict()
        with _as_call_errors():
            with self._index.read() as rows:
                needed = {
                    (content.area, content.sha256): (shown, content) for shown, content in rows.all_bytes()
                }
            for shown, content in needed.values():
                problem = self._objects.problem(content)
                if problem is None or self._is_needed(content):
                    verdict.count(shown, content.area, content.size, problem)
        return verdict

    def _put_file(self, source: int | Path, about: Put, scope: Scope) -> Record:
        with opened(source) as fd:
            return self._put(fd, os.fstat(fd).st_size, about, scope)

    def _put(self, source: int | bytes, size: int, about: Put, scope: Scope) -> Record:
        now = self.clock()
        place = place_of(scope)
        if about.retention is Retention.FILES:
            # Before the copy: what is far too large is not to fill the disk first.
            check_quota(size, 0, self.rules.files)
        self._reserve.take()
        with _as_call_errors(), self._objects.receive(place.area, source) as incoming:
            with self._index.change(place.area) as rows:
                content = incoming.sha256, incoming.size
                added = rows.put(about, content, scope=scope, now=now, rules=self.rules)
                # Should this be interrupted, it says whose left-over the bytes are.
                Journal(self.root, place.area).announce(incoming.sha256)
                self._objects.place(place.area, incoming)
            self._drop(row for row, _ in added.gone)
        log_removals(row.removal(reason) for row, reason in added.gone)
        return added.row.record({place: scope.owner})

    @contextmanager
    def _opened(self, record: Record, scope: Scope) -> Iterator[int]:
        fd = self._read(LocalStore._open, record, scope)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, record: Record, scope: Scope) -> int:
        # Only an observation's use is noted, and a reader of files waits for no writer.
        observed = record.said.retention is Retention.OBSERVATIONS
        noting = observed and not self.unwritten
        areas, index = _areas(scope), self._index
        with _as_call_errors(), index.change(*areas) if noting else index.read(areas) as rows:
            row = rows.use(record, scope=scope, now=self.clock())
        if row is None:
            raise _not_there(record)
        try:
            fd = self._objects.open(row.area, row.sha256)
        except FileNotFoundError as error:
            raise damaged(record, "its bytes are missing from the store") from error
        except OSError as error:
            raise damaged(record, f"its bytes cannot be read: {error.strerror}") from error
        size = os.fstat(fd).st_size
        if size != record.size:
            os.close(fd)
            raise damaged(record, f"the store holds {size} bytes of its {record.size}")
        return fd

    def _stat(self, id_: str, scope: Scope) -> Record | None:
        with _as_call_errors(), self._index.read(_areas(scope)) as rows:
            return rows.with_id(id_, scope=scope, now=self.clock()) if id_.isascii() else None

    def _find(self, name: str, scope: Scope) -> Record | None:
        if safe_name(name) != name:
            return None
        with _as_call_errors(), self._index.read(_areas(scope)) as rows:
            return rows.named(name, scope=scope, now=self.clock())

    def _last_observation(self, name: str, scope: Scope) -> Record | None:
        with _as_call_errors(), self._index.read(_areas(scope)) as rows:
            return rows.last_observation(name, scope=scope, now=self.clock())

    def _list(self, scope: Scope) -> Sequence[Record]:
        with _as_call_errors(), self._index.read(_areas(scope)) as rows:
            return rows.of(scope=scope, now=self.clock())

    def _sizes(self, scope: Scope) -> Sequence[int]:
        area = place_of(scope).area
        with _as_call_errors(), self._index.read([area]) as rows:
            return rows.sizes(area)

    def _delete(self, id_: str, scope: Scope, name: str | None) -> bool:
        if not id_.isascii() or (name is not None and safe_name(name) != name):
            return False
        with _as_call_errors():
            with self._index.change(*_areas(scope)) as rows:
                gone = rows.remove(id_, scope=scope, now=self.clock(), name=name)
            # Only when the rows are gone for good. Interrupted here, bytes stay that nothing refers to.
            self._drop(gone)
            self._reserve.take()
        return bool(gone)

    def _touch(self, id_: str, scope: Scope, expires_at: datetime | None) -> bool:
        with _as_call_errors(), self._index.change(*_areas(scope)) as rows:
            now = self.clock()
            return rows.touch(id_, scope=scope, now=now, expires_at=expires_at, rules=self.rules)

    def _sweep(self) -> Sequence[Removal]:
        with _as_call_errors():
            orphans = Orphans(root=self.root, index=self._index)
            orphans.follow_all()
            ended = self._remove_ended()
            dropped = self._surely(orphans.clear)
            left = [(f"{there.area}/{there.sha256}", there.size) for there in dropped]
            left += [(str(path.relative_to(self.root)), size) for path, size in self._objects.sweep()]
            self._reserve.take()
        removals = [row.removal(Reason.EXPIRED) for row in ended]
        removals += [
            Removal(what=what, name=None, size=size, reason=Reason.LEFT_BEHIND) for what, size in left
        ]
        log_removals(removals)
        return removals

    def _check_index(self) -> None:
        with _as_call_errors():
            self._index.check()

    def _fault(self) -> str | None:
        try:
            _tried(self._look)
        except CallError as error:
            return error.message
        return None

    def _look(self) -> None:
        with _as_call_errors():
            try_to_write(self.root)
            with self._index.read() as rows:
                rows.refers_to("", "")

    def _remove_ended(self) -> Sequence[Row]:
        now = self.clock()
        with self._index.read() as rows:
            areas = rows.areas_with_ended(now)
        return [row for area in areas for row in self._surely(self._remove_ended_in, area, now)]

    def _remove_ended_in(self, area: str, now: datetime) -> Sequence[Row]:
        with self._index.change(area) as rows:
            gone = rows.remove_ended(now, area=area)
        self._drop(gone)
        return gone

    def _drop(self, gone: Iterable[Row]) -> None:
        """Delete the bytes of rows that are gone for good, also where there is no room to do so."""
        self._surely(self._delete_unneeded, [row.bytes for row in gone])

    def _delete_unneeded(self, contents: Iterable[Bytes]) -> None:
        for content in contents:
            # Within a change, so that no row can come to need them.
            with self._index.change(content.area) as rows:
                if not rows.refers_to(content.area, content.sha256):
                    self._objects.delete(content.area, content.sha256)

    def _is_needed(self, content: Bytes) -> bool:
        with self._index.read() as rows:
            return rows.refers_to(content.area, content.sha256)

    def _surely(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what must work on a full disk too, and where the index has to be made anew: all or nothing."""
        return self._reserve.spend(lambda: _tried(act, *args, **kwargs))

    def _read(self, act: Callable[Concatenate["LocalStore", P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what only reads: also where the disk is full, or takes nothing at all."""
        try:
            return self._surely(act, self, *args, **kwargs)
        except CallError as error:
            if not is_unwritten(error.__cause__):
                raise
            with contextlib.suppress(OSError, sqlite3.Error):
                return _tried(act, replace(self, unwritten=True), *args, **kwargs)
            raise

    @property
    def _index(self) -> Index:
        return Index(self.root, unwritten=self.unwritten)

    @property
    def _reserve(self) -> Reserve:
        return Reserve(self.root)

    @property
    def _objects(self) -> Objects:
        return Objects(self.root)


def _missing(shown: str, content: Bytes, size: int | None) -> MissingBytes:
    problem = "its bytes are missing" if size is None else f"{size} of its {content.size} bytes are there"
    return MissingBytes(shown=shown, area=content.area, problem=problem)


def _not_there(record: Record) -> CallError:
    message = f"the file {record.shown!r} is no longer stored"
    return CallError(Code.E_FILE_NOT_FOUND, message, details={"name": record.name, "id": record.id})


def _areas(scope: Scope) -> list[str]:
    return list(dict.fromkeys(place.area for place in places_for(scope)))


def _tried(act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do something, again where the index turned out to be damaged meanwhile and is a new one now."""
    for _attempt in range(_ATTEMPTS - 1):
        try:
            return act(*args, **kwargs)
        except (CallError, IndexMadeAnew) as error:
            if not isinstance(error.__cause__ if isinstance(error, CallError) else error, IndexMadeAnew):
                raise
    return act(*args, **kwargs)


@contextmanager
def _as_call_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            raise CallError(Code.E_STORE, _FULL) from error
        raise CallError(Code.E_STORE, f"the index of My Files cannot be used: {error}") from error
    except OSError as error:
        if error.errno == errno.EDQUOT:
            raise CallError(Code.E_QUOTA, "the disk quota is used up; remove files and try again") from error
        if error.errno == errno.ENOSPC:
            raise CallError(Code.E_STORE, _FULL) from error
        raise CallError(Code.E_STORE, f"My Files cannot be used: {error.strerror}") from error
