"""A store with a spool in front: artifacts that it cannot accept wait on this machine and are sent later.

The spool is a local store in the state folder. While an artifact waits there it is found, opened and listed
like any other, marked as pending. It may get another name when the store accepts it, if another host has used
that name; its id stays. A file in both is one file: it is listed once, and deleted from both. If the store
cannot be reached for the deletion, a note in the spool hides the file until it can.

Source: architecture, invariant 11; requirement S1-70.
"""

import asyncio
import builtins
import contextlib
import json
import logging
import os
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from runner.errors import CallError, Code
from runner.store.blobs import utc_now
from runner.store.content import FileContent, damaged, problem_in
from runner.store.entries import DamagedEntry, Entry, PutKey, place_of, places_for, put_key, put_keys
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import ArtifactStore, Content, Put, Record, Removal, Scope
from runner.store.reports import Meter, Reporting, StoreFacts, StoreVerdict, measured
from runner.store.retention import Budgets, Quota, RetentionRules
from runner.store.sources import opened
from runner.store.store import BlobStore
from runner.system import locks
from runner.system.backoff import doubled_s
from runner.system.threads import run_in_thread

__all__ = ["Spool", "SpoolingStore", "delay_s"]

_FIRST_S, _LONGEST_S = 2.0, 600.0
_LOOK_S = 5.0
_AT_ONCE = 8
_BYTES_PER_S = 1024 * 1024
# A put that fails after `_LONG_S` means a silent server; no put waits for it in the next `_SILENCE_S`.
_LONG_S, _SILENCE_S = 5.0, 10.0
# The lifetime of a class begins when the store accepts an artifact, not while it waits.
_UNBOUNDED = Budgets(
    ttl_seconds=0,
    max_artifact_bytes=sys.maxsize,
    max_session_bytes=sys.maxsize,
    max_trace_bytes=sys.maxsize,
    max_artifacts_per_trace=sys.maxsize,
    max_artifacts_per_session=sys.maxsize,
)

_log = logging.getLogger(__name__)


def delay_s(attempts: int, chance: float) -> float:
    """Return the seconds to wait after a number of attempts.

    Args:
        attempts: Number of attempts, from 1.
        chance: Jitter from 0 to 1, so that hosts that failed together do not retry together.
    """
    return doubled_s(attempts, first_s=_FIRST_S, most_s=_LONGEST_S) * (0.5 + chance / 2)


class Spool(BlobStore):
    """The artifacts that wait on this machine.

    Args:
        folder: Their folder; created on first use, accessible to its owner only.
        quota: Limit on one user's waiting files.
        clock: Returns the current time.
    """

    def __init__(
        self, folder: Path, quota: Quota | None = None, clock: Callable[[], datetime] = utc_now
    ) -> None:
        rules = RetentionRules(files=quota or Quota(), observations=_UNBOUNDED)
        super().__init__(LocalBlobs(folder), rules, clock=clock)
        self.folder = folder

    def all(self) -> builtins.list[Entry]:
        """Return the waiting files, the longest waiting first; blocks."""
        self._convert("")
        try:
            known = [self._known(area) for area in self.blobs.areas()]
        except (NotADirectoryError, PermissionError):
            # `SpoolingStore.fault` reports a folder that cannot be used.
            return []
        alive = [entry for each in known for entry in each.entries.values() if self._is_alive(entry)]
        return sorted(alive, key=lambda entry: entry.put)

    def forget(self, entry: Entry) -> bool:
        """Remove an artifact from the spool; return whether it was still waiting. Blocks."""
        with self.blobs.exclusive(entry.area):
            present = self._read(entry.key)
            return present is not None and present.blob == entry.blob and self._remove(present)

    def hide(self, record: Record, deleted: datetime) -> None:
        """Record that the store's copy of an artifact was deleted at that time; blocks."""
        area = self.blobs.prefix(place_of(record.scope).area)
        gone = Entry(record=replace(record, expires_at=deleted), blob="", put=self._next(), is_gone=True)
        with self.blobs.exclusive(area):
            self.blobs.put(f"{area}deleted/{secrets.token_hex(16)}", gone.written())

    def hidden(self, scope: Scope | None = None) -> builtins.list[Entry]:
        """Return the deletion notes that a scope may access, or all notes; blocks."""
        self._convert("")
        found: builtins.list[Entry] = []
        with contextlib.suppress(NotADirectoryError, PermissionError):
            if scope is None:
                areas = self.blobs.areas()
            else:
                areas = [*{self.blobs.prefix(place.area): None for place in places_for(scope)}]
            for area in areas:
                for blob in self.blobs.scan(f"{area}deleted/"):
                    content = self.blobs.get(blob.key)
                    with contextlib.suppress(DamagedEntry):
                        if content is not None:
                            found.append(Entry.read(content[0], key=blob.key))
        return found

    def unsure(self) -> builtins.list[str]:
        """Return the names of complete files without a readable record: they are kept but not sent."""
        return [
            *(path.name for path in sorted(self.folder.glob("*.bytes"))),
            *(b.key for b in self.orphans()),
        ]

    def _convert_layout(self, prefix: str) -> None:
        """Import the files of earlier versions: `{token}.bytes`, each with its note `{token}.json`."""
        for note in sorted(self.folder.glob("*.json")) if not prefix else ():
            content = note.with_suffix(".bytes")
            # Another process may have imported and removed both at the same time.
            with contextlib.suppress(DamagedEntry, FileNotFoundError, ValueError):
                fields = json.loads(note.read_bytes())
                record = Entry.read(json.dumps({**fields, "blob": "", "put": 0}).encode()).record
                if fields.get("deleted"):
                    self.hide(record, datetime.fromisoformat(fields["deleted"]))
                else:
                    try:
                        with opened(content) as fd:
                            self._put(fd, record.size, record.metadata, record.scope)
                    except CallError as error:
                        # The file stays in the folder; `doctor` lists it as a leftover.
                        _log.warning("spooled file not imported", extra={"reason": error.message})
                        continue
                content.unlink(missing_ok=True)
                note.unlink(missing_ok=True)


class SpoolingStore:
    """An `ArtifactStore` in front of another.

    Args:
        store: The other store, the final one.
        spool: The spool in which artifacts wait.
        unavailable: Answer to a put that has to wait: `spool` a pending record, `fail` an error `E_STORE`.
        now: Returns the current time.
        quota: Limit on one user's waiting files. The store counts its own files.
        patience_s: Time limit of a put to the store, after which the file waits, in seconds, and a
            second more for each MiB.
    """

    def __init__(
        self,
        store: ArtifactStore,
        spool: Spool,
        unavailable: Literal["fail", "spool"] = "spool",
        *,
        now: Callable[[], datetime] = utc_now,
        quota: Quota | None = None,
        patience_s: float = 15.0,
    ) -> None:
        self.store, self.spool, self.now = store, Spool(spool.folder, quota, now), now
        self.unavailable = unavailable
        self._patience_s = patience_s
        self._silent_until = 0.0
        self._meter = Meter()
        self._due: dict[str, tuple[int, datetime]] = {}

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Store bytes."""
        return await self._put(content, len(content), about, scope)

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Store text as UTF-8; `text/plain` unless `about` has another type."""
        return await self.put_bytes(text.encode(errors="replace"), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Store a regular file, given by its path or by a descriptor, which is read from its start."""
        with opened(source) as fd:
            return await self._put(fd, os.fstat(fd).st_size, about, scope)

    def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it."""
        if record.pending:
            return self._open_pending(record, scope, offset, length)
        return self.store.open(record, scope=scope, offset=offset, length=length)

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id: the one put last, if content has several names."""
        waiting = await self.spool.stat(id_, scope=scope)
        if waiting is not None:
            return _pending(waiting)
        stored = await self.store.stat(id_, scope=scope)
        if stored is None or await self._left([stored], scope):
            return stored
        # That name of it was deleted; it may have others.
        others = [record for record in await self.list(scope=scope) if record.id == id_]
        return max(others, key=lambda record: record.created, default=None)

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name."""
        waiting = await self.spool.find(name, scope=scope)
        if waiting is not None:
            return _pending(waiting)
        stored = await self.store.find(name, scope=scope)
        return stored if stored is not None and await self._left([stored], scope) else None

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may access, by name."""
        waiting = await self.spool.list(scope=scope)
        stored = await self._left(await self.store.list(scope=scope), scope)
        return await asyncio.to_thread(_merged, stored, waiting) if waiting else stored

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`.

        Files that wait here count too: the store will get them, and its quota does not include them yet.
        """
        return [*await self.store.sizes(scope=scope), *await self.spool.sizes(scope=scope)]

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact, or only one name of it; return whether there was one."""
        waiting = [record for record in await self.spool.list(scope=scope) if record.id == id_]
        if not waiting:
            return await self.store.delete(id_, scope=scope, name=name)
        going = [entry for entry in waiting if name in (None, entry.name)]
        gone: builtins.list[Record] = []
        try:
            stored = [record for record in await self.store.list(scope=scope) if record.id == id_]
            gone = [record for record in stored if name in (None, record.name)]
            # The store may have given the same file another name.
            going += [k for k in waiting if k not in going and any(_is_same(r, k) for r in gone)]
            gone += [r for r in stored if r not in gone and any(_is_same(r, k) for k in going)]
            for each in going:
                await self.spool.delete(each.id, scope=each.scope, name=each.name)
            for record in gone:
                await self.store.delete(record.id, scope=record.scope, name=record.name)
        except CallError as error:
            if not going or not error.retryable:
                raise
            # Hidden first: an interruption between the two steps leaves the file in the spool.
            for each in going:
                await asyncio.to_thread(self.spool.hide, each, self.now())
                await self.spool.delete(each.id, scope=each.scope, name=each.name)
        return bool(going or gone)

    async def sweep(self) -> Sequence[Removal]:
        """Remove expired artifacts and leftovers of interrupted operations; return the removals."""
        removals = await self.spool.sweep()
        unsure = await asyncio.to_thread(self.spool.unsure)
        if unsure:
            _log.error("spool records unreadable", extra={"files": unsure})
        return [*removals, *await self.store.sweep()]

    async def fault(self) -> str | None:
        """Return the fault of the store, or of the spool; without the store nothing can be read."""
        fault = await self.store.fault()
        if fault is not None:
            return fault
        fault = await self.spool.fault()
        return fault and f"the folder of files that wait for the object store: {fault}"

    async def measure(self) -> StoreFacts:
        """Return the usage of the store, with the files that wait here and the number of failed puts."""
        waiting = await asyncio.to_thread(self.spool.all)
        return replace(
            await measured(self.store),
            pending_files=len(waiting),
            pending_bytes=sum(entry.record.size for entry in waiting),
            failed_puts=self._meter.failed_puts,
        )

    async def verify(self) -> StoreVerdict:
        """Read every content, here and in the store, and verify its digest."""
        verdict = await self.store.verify() if isinstance(self.store, Reporting) else StoreVerdict()
        here = await self.spool.verify()
        return StoreVerdict(
            files=verdict.files + here.files,
            bytes=verdict.bytes + here.bytes,
            damaged=[*verdict.damaged, *here.damaged],
        )

    async def send(self) -> int:
        """Send the due files, and the rest once the store accepts one; return the number accepted."""
        for gone in await asyncio.to_thread(self.spool.hidden):
            await self._delete_there(gone)
        waiting, now = await asyncio.to_thread(self.spool.all), self.now()
        due = [entry for entry in waiting if self._due.get(entry.blob, (0, now))[1] <= now]
        taken = await self._send_several(due)
        if taken:
            # The rest waited for the store, which is available again.
            taken += await self._send_several([each for each in waiting if each not in due])
        return taken

    async def send_all(self, within_s: float) -> int:
        """Send all waiting files, due or not; return the number that still wait.

        For a server that stops: its spool is not served until another server uses its state folder.
        """
        waiting = await asyncio.to_thread(self.spool.all)
        if waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    if await self.store.fault() is None:
                        _log.info("pending artifact uploads started", extra={"files": len(waiting)})
                        await self._send_several(waiting)
        return len(await asyncio.to_thread(self.spool.all))

    async def run(self) -> None:
        """Send the due files every few seconds until cancelled, including files left by earlier runs."""
        while True:
            try:
                await self.send()
            except OSError as error:
                _log.warning("spool cannot be used", extra={"reason": error.strerror})
            await asyncio.sleep(_LOOK_S)

    async def _put(self, source: int | bytes, size: int, about: Put, scope: Scope) -> Record:
        try:
            async with self._patience(size):
                record = await _put_into(self.store, source, about, scope)
        except CallError as error:
            return await self._keep(source, about, scope, error)
        with contextlib.suppress(OSError):
            for gone in await asyncio.to_thread(self.spool.hidden, record.scope):
                if _is_same(record, gone.record):
                    await asyncio.to_thread(self.spool.blobs.delete, gone.key)
        return record

    async def _keep(self, source: int | bytes, about: Put, scope: Scope, error: CallError) -> Record:
        # Waiting cannot remedy a permanent refusal of the store, or a fault of the file.
        if error.code is not Code.E_STORE or not error.retryable:
            raise error
        try:
            record = await _put_into(self.spool, source, about, scope)
        except CallError as failed:
            if failed.code is not Code.E_STORE:
                raise
            _log.error("spool cannot be used", extra={"reason": failed.message})
            raise error from failed
        _log.warning("artifact waits for the store", extra={"artifact": record.id, "bytes": record.size})
        if self.unavailable == "fail":
            message = f"{error.message}. The file is kept on this machine and goes to the store when it can"
            raise CallError(Code.E_STORE, message, details={**error.details, "kept": True}) from error
        return _pending(record)

    async def _send_several(self, waiting: Sequence[Entry]) -> int:
        """Send several files at once; files of one owner with the same requested name go in put order."""
        rivals: dict[tuple[Scope, str | None], builtins.list[Entry]] = {}
        for entry in waiting:
            rivals.setdefault((entry.record.scope.owner, entry.record.metadata.name), []).append(entry)
        room = asyncio.Semaphore(_AT_ONCE)

        async def in_order(files: Sequence[Entry]) -> int:
            taken = 0
            for pending in files:
                async with room:
                    taken += await self._send(pending)
            return taken

        return sum(await asyncio.gather(*(in_order(files) for files in rivals.values())))

    async def _send(self, entry: Entry) -> bool:
        record = entry.record
        with contextlib.ExitStack() as held:
            try:
                content = held.enter_context(self.spool.blobs.content(entry, 0, record.size))
                # Another process that held the lock may have sent and removed it.
                if not isinstance(content, FileContent) or not locks.try_lock(content.fd):
                    return False
                present = await asyncio.to_thread(self.spool.all)
                if entry.key not in [each.key for each in present]:
                    return False
                problem = await run_in_thread(problem_in, content, record)
                if problem is not None:
                    raise damaged(record, problem)
                with self._meter.counting():
                    stored = await self.store.put_file(content.fd, record.metadata, scope=record.scope)
            except FileNotFoundError:
                return False
            except CallError as error:
                attempts = self._due.get(entry.blob, (0, None))[0] + 1
                wait_s = delay_s(attempts, random.random())  # noqa: S311 - not a secret
                self._due[entry.blob] = attempts, self.now() + timedelta(seconds=wait_s)
                facts = {"artifact": record.id, "attempts": attempts, "code": error.code.name}
                _log.warning("artifact upload postponed", extra=facts)
                return False
        self._due.pop(entry.blob, None)
        if await asyncio.to_thread(self.spool.forget, entry):
            _log.info("artifact sent to the store", extra={"artifact": record.id})
            return True
        # It was deleted while it was being sent.
        await self.store.delete(stored.id, scope=stored.scope, name=stored.name)
        return False

    async def _delete_there(self, gone: Entry) -> None:
        scope = gone.record.scope
        try:
            for record in await self.store.list(scope=scope):
                if not _without_gone([record], [gone]):
                    await self.store.delete(record.id, scope=record.scope, name=record.name)
        except CallError as error:
            facts = {"artifact": gone.record.id, "code": error.code.name}
            _log.warning("artifact deletion failed", extra=facts)
            return
        await asyncio.to_thread(self.spool.blobs.delete, gone.key)

    async def _left(self, stored: Sequence[Record], scope: Scope) -> builtins.list[Record]:
        hidden = await asyncio.to_thread(self.spool.hidden, scope)
        return await asyncio.to_thread(_without_gone, stored, hidden) if hidden else [*stored]

    @asynccontextmanager
    async def _patience(self, size: int) -> AsyncIterator[None]:
        limit_s = self._patience_s + size / _BYTES_PER_S
        late = CallError(
            Code.E_STORE,
            f"the object store cannot be used: put took more than {limit_s:.0f} s; try again later",
            details={"operation": "put", "reason": "timeout"},
        )
        start = time.monotonic()
        with self._meter.counting():
            if start < self._silent_until:
                # Another put has just timed out; ten files of a call must not wait one after another.
                raise late
            try:
                async with asyncio.timeout(limit_s):
                    yield
            except (TimeoutError, CallError) as error:
                now = time.monotonic()
                failed = error if isinstance(error, CallError) else late
                if failed.code is Code.E_STORE and now - start > _LONG_S:
                    self._silent_until = now + _SILENCE_S
                raise failed from None

    @asynccontextmanager
    async def _open_pending(
        self, record: Record, scope: Scope, offset: int, length: int | None
    ) -> AsyncIterator[Content]:
        async with contextlib.AsyncExitStack() as held:
            waiting = self.spool.open(record, scope=scope, offset=offset, length=length)
            try:
                content = await held.enter_async_context(waiting)
            except CallError as error:
                if error.code is not Code.E_FILE_NOT_FOUND:
                    raise
                # It was sent to the store in the meantime.
                stored = await self.store.stat(record.id, scope=scope)
                if stored is None:
                    raise
                content = await held.enter_async_context(
                    self.store.open(stored, scope=scope, offset=offset, length=length)
                )
            yield content


async def _put_into(store: ArtifactStore, source: int | bytes, about: Put, scope: Scope) -> Record:
    put = store.put_bytes if isinstance(source, bytes) else store.put_file
    return await put(source, about, scope=scope)  # type: ignore[arg-type]


def _pending(record: Record) -> Record:
    return replace(record, pending=True)


def _merged(stored: Sequence[Record], waiting: Sequence[Record]) -> list[Record]:
    """Return stored and pending artifacts by name, an artifact that is both once."""
    known = {key for record in stored for key in put_keys(record)}
    alone = [_pending(record) for record in waiting if put_key(record) not in known]
    return sorted([*stored, *alone], key=lambda r: (r.name is None, r.name or "", r.created))


def _without_gone(stored: Sequence[Record], hidden: Sequence[Entry]) -> list[Record]:
    """Return stored artifacts without deleted ones; one put after the deletion, by any host, is kept."""
    deleted: dict[PutKey, datetime] = {}
    for note in hidden:
        if (end := note.record.expires_at) is not None:
            deleted[put_key(note.record)] = max(end, deleted.get(put_key(note.record), end))
    return [
        record
        for record in stored
        if not any(record.created <= deleted[key] for key in put_keys(record) if key in deleted)
    ]


def _is_same(stored: Record, pending: Record) -> bool:
    """Return whether an artifact of the store is the pending one: sending it would not add an artifact."""
    return put_key(pending) in put_keys(stored)
