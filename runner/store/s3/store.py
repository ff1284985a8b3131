"""The store in a bucket of an S3 server. The bucket alone is the truth; any number of hosts may share it.

The record is what makes an artifact: it is written last, when the bytes are there, and deleted first.
Bytes and names of records are never written twice, so no host can spoil what another one has put. What
may change of a record, its lifetime above all, is in an object of its own beside it, which means nothing
where the record is gone. Interrupted anywhere, an operation leaves at most objects without a record.

Source: document 004, sections 5.2 to 5.6; requirements S1-10, S1-11, S1-70; rule R1 of the conformance
cases; `docs/decisions/0011-records-beside-the-bytes.md`.
"""

import asyncio
import builtins
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from runner.errors import CallError, Code
from runner.formats.filenames import safe_name
from runner.formats.mime import DEFAULT_MIME, guess
from runner.store.areas import place_of
from runner.store.checking import Check
from runner.store.content import span
from runner.store.damage import damaged
from runner.store.protocol import Put, Record, Removal, Retention, Scope
from runner.store.removals import log_removals
from runner.store.retention import (
    Cleanup,
    KeptObservation,
    RetentionRules,
    check_quota,
    end_of_touched,
    ends_at,
    has_ended,
    make_room,
)
from runner.store.s3.bucket import Bucket, BucketAddress, NoSuchObject, Stream
from runner.store.s3.content import S3Content, problem_of
from runner.store.s3.entry import BucketEntry, renewed
from runner.store.s3.faults import fault_in
from runner.store.s3.index import PROBE, S3Index
from runner.store.s3.keys import OwnerKeys, keys_of, new_token
from runner.store.s3.sweep import STALE_AFTER, everything, removal_of, sweep
from runner.store.s3.upload import PART_BYTES, ObjectUpload, Stopped
from runner.store.s3.usage import S3Usage
from runner.store.s3.waiting import Waiting
from runner.store.sources import digest_of, may_have, opened, same_file
from runner.store.verifying import StoreVerdict

__all__ = ["S3Store"]

# For puts and sweeps, which may take long.
_THREADS = 16
# How long a person waits: for an answer, and for the next MiB of a file.
_ASK_S, _READ_S = 8.0, 30.0
# Each look costs two requests.
_CHECK_S = 15.0

T = TypeVar("T")
Clock = Callable[[], datetime]


class S3Store:
    """An `ArtifactStore` in a bucket."""

    def __init__(
        self,
        address: BucketAddress,
        *,
        rules: RetentionRules | None = None,
        clock: Clock | None = None,
        stale_after: timedelta = STALE_AFTER,
    ) -> None:
        """Make a store; nothing is asked of the server yet.

        Args:
            address: Where the bucket is.
            rules: What may be kept; by default the rules of `RetentionRules()`.
            clock: The present time; by default the server's.
            stale_after: Age at which objects without a record count as left behind.
        """
        self._bucket = Bucket(address)
        self._rules = rules or RetentionRules()
        self._now = clock or self._bucket.now
        self._stale_after = stale_after
        self._prefix = address.prefix
        self._index = S3Index(self._bucket, address.prefix)
        self._usage = S3Usage(self._bucket)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="s3")
        self._waiting = Waiting()
        self._check = Check(keep_s=_CHECK_S)
        self._counting = threading.Lock()
        self._last = 0

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Keep bytes."""
        stop = threading.Event()
        return await self._run(lambda: self._put(content, len(content), about, scope, stop), stop)

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Keep text as UTF-8; `text/plain` unless `about` says otherwise."""
        return await self.put_bytes(text.encode(errors="replace"), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Keep a regular file, given by its path or by a descriptor, which is read from its start."""
        stop = threading.Event()
        with contextlib.ExitStack() as held:
            fd = held.enter_context(opened(source))
            # The thread outlives a cancelled caller for a moment: the file is its to close.
            keep = held.pop_all()

        def work() -> Record:
            with keep:
                return self._put(fd, os.fstat(fd).st_size, about, scope, stop)

        return await self._run(work, stop)

    @contextlib.asynccontextmanager
    async def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[S3Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it."""
        content = await self._ask("get", scope, lambda: self._open(record, scope, offset, length))
        try:
            yield content
        finally:
            content.close()

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id: the one put last, where content has several names."""
        found = await self._ask("find", scope, lambda: self._alive(self._index.with_id(id_, scope=scope)))
        return found[0].record if found else None

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name."""
        if safe_name(name) != name:
            return None
        found = await self._ask("find", scope, lambda: self._alive(self._index.named(name, scope=scope)))
        return found[0].record if found else None

    async def last_observation(self, name: str, *, scope: Scope) -> Record | None:
        """Return the newest observation of exactly that name."""
        found = await self._ask("find", scope, lambda: self._alive(self._index.observations(scope)))
        named = [entry for entry in found if entry.record.name == name]
        return max(named, key=lambda entry: entry.put).record if named else None

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may have, by name."""
        found = await self._ask("list", scope, lambda: self._alive(self._index.of(scope)))
        order = sorted(found, key=lambda e: (e.record.name is None, e.record.name or "", e.put))
        return [entry.record for entry in order]

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`."""
        keys = keys_of(self._prefix, scope)
        return await self._ask("list", scope, lambda: self._usage.lengths(keys))

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact: that name of it, or all of it; say whether there was one."""
        return await self._ask("delete", scope, lambda: self._delete(id_, scope, name))

    async def touch(self, id_: str, *, scope: Scope, expires_at: datetime | None = None) -> bool:
        """Renew the lifetime of an observation from now, or let any artifact end at `expires_at`."""
        return await self._ask("put", scope, lambda: self._touch(id_, scope, expires_at))

    async def sweep(self) -> Sequence[Removal]:
        """Remove what has expired and what interrupted operations left behind; return what it was."""
        return await self._run(self._sweep)

    async def fault(self) -> str | None:
        """Say whether files can be put and read now: a listing and a small object, which stays."""
        return await self._check.ask(self._fault)

    async def verify(self) -> StoreVerdict:
        """Read every content and hold it against its digest."""
        verdict = StoreVerdict()
        entries, unread = await self._run(lambda: everything(self._index))
        for item in unread:
            area, _, name = item.key.removeprefix(self._prefix).rpartition("/")
            verdict.count(name, area, 0, "its record is damaged")
        for entry in self._alive(entries):
            record = entry.record
            problem = await problem_of(self._bucket, record)
            if problem is None or await self._run(partial(self._index.has, entry)):
                verdict.count(record.shown, place_of(record.scope).area, record.size, problem)
        return verdict

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._waiting.close()
        self._bucket.close()

    def _put(self, source: int | bytes, size: int, about: Put, scope: Scope, stop: threading.Event) -> Record:
        keys = keys_of(self._prefix, scope)
        about = _safe(about)
        if about.retention is Retention.FILES:
            # Before it is read: no need to digest what is too large on its own.
            check_quota(size, 0, self._rules.files)
        before = None if isinstance(source, bytes) else os.fstat(source)
        sha256 = None
        if not self._is_new(keys, about, size):
            sha256, size = digest_of(source)
            old = self._again(keys, about, scope, sha256=sha256, size=size)
            if old is not None:
                return old
        if about.retention is Retention.OBSERVATIONS:
            self._make_room(keys, size, scope)
        else:
            self._usage.check(keys, size, self._rules.files, sha256=sha256)
        token, now = new_token(), self._now()
        key = keys.content(token, day=now, name=about.name, retention=about.retention)
        try:
            sent = self._upload(key, source, size, about, sha256, stop)
            _check_wanted(stop)
            _check_same(source, before)
            # What was not known before may be here by now, from another host.
            old = None if sha256 else self._again(keys, about, scope, sha256=sent, size=size)
            if old is not None:
                with contextlib.suppress(CallError):
                    self._bucket.delete(key)
                return old
            new = self._new(keys, about, scope, key=key, token=token, now=now, sha256=sent, size=size)
            added = self._index.add(new).record
        except BaseException:
            # Bytes without a record: nobody finds them, and a sweep deletes what cannot be deleted now.
            with contextlib.suppress(CallError):
                self._bucket.delete(key)
            raise
        if about.retention is not Retention.OBSERVATIONS:
            self._usage.add(keys, sent, size)
        return added

    def _is_new(self, keys: OwnerKeys, about: Put, size: int) -> bool:
        """Say whether a file is new by its length alone, so that it may be sent before it is digested."""
        if about.retention is Retention.OBSERVATIONS or size <= PART_BYTES:
            return False
        return self._usage.is_new(keys, size, self._rules.files)

    def _again(self, keys: OwnerKeys, about: Put, scope: Scope, *, sha256: str, size: int) -> Record | None:
        """Renew the artifact that a put is again, if there is one; one without its bytes is removed."""
        same = self._index.same(keys, about.id_prefix + sha256)
        for old in self._alive(e for e in same if e.is_again(about, about.name)):
            if self._bucket.size(str(old.record.key)) == size:
                return self._renew(old, about, scope).record
            self._remove(keys, old)
        return None

    def _new(
        self,
        keys: OwnerKeys,
        about: Put,
        scope: Scope,
        *,
        key: str,
        token: str,
        now: datetime,
        sha256: str,
        size: int,
    ) -> BucketEntry:
        count = self._count()
        record = Record(
            id=self._index.free_id(keys, about.id_prefix + sha256),
            name=about.name,
            mime=_mime(about),
            size=size,
            sha256=sha256,
            scope=scope,
            said=about,
            created=now,
            expires_at=ends_at(about, now=now, rules=self._rules),
            key=key,
        )
        return BucketEntry(record=record, token=token, put=count, used=count)

    def _upload(
        self, key: str, source: int | bytes, size: int, about: Put, sha256: str | None, stop: threading.Event
    ) -> str:
        # Enough to know the object by, should its record be lost; its marker has the digest too.
        noted = {"origin": about.origin.value}
        if sha256 is not None:
            noted["sha256"] = sha256
        if about.name is not None:
            noted["name"] = quote(about.name)
        sent = ObjectUpload(bucket=self._bucket, key=key, mime=_mime(about), metadata=noted, stop=stop).send(
            source, size
        )
        if sha256 not in (None, sent):
            raise _changed()
        return sent

    def _renew(self, old: BucketEntry, about: Put, scope: Scope) -> BucketEntry:
        said = renewed(about, old.record.said)
        if about.retention is Retention.FILES:
            said = replace(said, name=old.record.said.name)
        now, count = self._now(), self._count()
        record = replace(
            old.record,
            mime=about.mime or guess(about.name or ""),
            scope=scope,
            said=said,
            created=now,
            expires_at=ends_at(said, now=now, rules=self._rules),
        )
        new = replace(old, record=record, put=count, used=count)
        self._index.change(new)
        return new

    def _open(self, record: Record, scope: Scope, offset: int, length: int | None) -> S3Content:
        start, end = span(record.size, offset, length)
        try:
            stream = self._stream(self._opened(record, scope), start, end - start)
        except NoSuchObject:
            # The record goes first: where it still is, the bytes should be too.
            if self._entry_of(record, scope) is None:
                raise _gone(record) from None
            raise damaged(record, "its bytes are missing from the store") from None
        reading = partial(self._ask, "get", scope, limit_s=_READ_S)
        return S3Content(self._bucket, record, offset=start, length=end - start, run=reading, stream=stream)

    def _opened(self, record: Record, scope: Scope) -> str:
        """Return the key of the bytes that a caller wants to read, and note the use of an observation."""
        key, area = str(record.key), keys_of(self._prefix, record.scope).area
        ended = has_ended(record.expires_at, now=self._now())
        known = not ended and key.startswith(area) and may_have(record, scope)
        if known and record.said.retention is Retention.FILES:
            return key
        entry = self._entry_of(record, scope)
        if entry is None or entry.record.key is None:
            raise _gone(record)
        if _is_observation(entry) and self._rules.observations.cleanup is Cleanup.LRU:
            self._index.change(replace(entry, used=self._count()))
        return entry.record.key

    def _stream(self, key: str, offset: int, length: int) -> Stream | None:
        """Begin to read; to a server an empty range is none, but the object must be there all the same."""
        if length:
            return self._bucket.stream(key, offset=offset, length=length)
        if self._bucket.size(key) is None:
            raise NoSuchObject
        return None

    def _entry_of(self, record: Record, scope: Scope) -> BucketEntry | None:
        """Return the present entry of a record that a caller holds, if the caller may have it."""
        found = self._alive(self._index.with_id(record.id, scope=scope))
        same = (
            e for e in found if e.record.name == record.name and e.record.scope.owner == record.scope.owner
        )
        return next(same, None)

    def _delete(self, id_: str, scope: Scope, name: str | None) -> bool:
        found = self._alive(self._index.with_id(id_, scope=scope))
        going = [entry for entry in found if name is None or entry.record.name == name]
        for entry in going:
            self._remove(keys_of(self._prefix, entry.record.scope), entry)
        return bool(going)

    def _remove(self, keys: OwnerKeys, entry: BucketEntry) -> None:
        self._index.remove(entry)
        self._usage.forget(keys)

    def _touch(self, id_: str, scope: Scope, expires_at: datetime | None) -> bool:
        found = self._alive(self._index.with_id(id_, scope=scope))
        for entry in found:
            said = entry.record.said
            said = said if expires_at is None else replace(said, expires_at=expires_at)
            held = entry.record.expires_at
            until = expires_at or end_of_touched(said, held, now=self._now(), rules=self._rules)
            self._index.change(entry.until(until, said=said))
        return bool(found)

    def _make_room(self, keys: OwnerKeys, size: int, scope: Scope) -> None:
        entries = {e.token: e for e in self._index.of_owner(keys) if _is_observation(e)}
        ended = [entry for entry in entries.values() if not self._alive([entry])]
        for entry in ended:
            self._index.remove(entries.pop(entry.token))
        held = [
            KeptObservation(
                key=token, size=e.record.size, trace=e.record.scope.trace_id, put=e.put, used=e.used
            )
            for token, e in entries.items()
        ]
        for item, reason in make_room(size, scope.trace_id, held, self._rules.observations):
            self._index.remove(entries[item.key])
            log_removals([removal_of(entries[item.key], reason)])

    def _sweep(self) -> builtins.list[Removal]:
        removed = sweep(self._index, self._rules, now=self._now(), stale_after=self._stale_after)
        log_removals(removed)
        return removed

    def _fault(self) -> str | None:
        try:
            self._bucket.ask(self._prefix)
            self._bucket.put(f"{self._prefix}{PROBE}", b"1")
        except CallError as error:
            fault = fault_in(error)
            return f"the object store cannot be used: {fault.reason}; {fault.cure}"
        return None

    def _alive(self, entries: Iterable[BucketEntry]) -> builtins.list[BucketEntry]:
        now = self._now()
        return [entry for entry in entries if not has_ended(entry.record.expires_at, now=now)]

    def _count(self) -> int:
        """Return a number above all that this store gave before, on the scale of all hosts."""
        with self._counting:
            self._last = max(self._last + 1, int(self._bucket.now().timestamp() * 1e9))
            return self._last

    async def _ask(
        self, operation: str, scope: Scope, work: Callable[[], T], *, limit_s: float = _ASK_S
    ) -> T:
        """Do in a thread what a person waits for, and wait for so long."""
        user = keys_of(self._prefix, scope).area
        return await self._waiting.ask(operation, user, work, limit_s=limit_s)

    async def _run(self, work: Callable[[], T], stop: threading.Event | None = None) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            if stop is not None:
                stop.set()
            raise


def _safe(about: Put) -> Put:
    """Return what is said of an artifact with its name made safe; a file always has one."""
    named = about.retention is Retention.FILES or about.name is not None
    return replace(about, name=safe_name(about.name or "") if named else None)


def _check_same(source: int | bytes, before: os.stat_result | None) -> None:
    if before is not None and isinstance(source, int) and not same_file(before, os.fstat(source)):
        raise _changed()


def _check_wanted(stop: threading.Event) -> None:
    if stop.is_set():
        # Whoever put it has given up: it may wait in a spool by now, or be deleted from there.
        raise Stopped


def _changed() -> CallError:
    return CallError(Code.E_STORE, "the file changed while it was being stored", retryable=False)


def _mime(about: Put) -> str:
    return about.mime or (DEFAULT_MIME if about.name is None else guess(about.name))


def _gone(record: Record) -> CallError:
    return CallError(Code.E_FILE_NOT_FOUND, f"there is no file {record.name or record.id!r} any more")


def _is_observation(entry: BucketEntry) -> bool:
    return entry.record.said.retention is Retention.OBSERVATIONS
