"""A store with a spool before it: what the store cannot take is kept here and sent later.

While it waits a file is found, opened and listed like any other, marked as pending. Whether the caller is
content with that or gets an error is a setting; the file is kept either way. It may get another name
when the store takes it, if another host has given that name away; its id stays. A file that both the
store and the spool have is one file: it is listed once, and deleted in both. What cannot be deleted in the
store now is found no more, and deleted there later.

Source: architecture, invariant 11; requirement S1-70.
"""

import asyncio
import builtins
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from runner.errors import CallError, Code
from runner.observation.store_facts import StoreFacts
from runner.store.areas import place_of
from runner.store.checking import Check
from runner.store.content import FileContent, span
from runner.store.damage import NOT_WHAT_WAS_PUT, damaged
from runner.store.disk import try_to_write
from runner.store.measuring import Meter, measured
from runner.store.protocol import ArtifactStore, Content, Put, Reason, Record, Removal, Retention, Scope
from runner.store.removals import log_removals
from runner.store.retention import Quota, has_ended
from runner.store.sources import digest_of, may_have, opened
from runner.store.spool.files import Spool, SpooledFile, is_same
from runner.store.verifying import StoreVerdict, Verifiable

__all__ = ["SpoolingStore"]

_LOOK_S = 5.0
_AT_ONCE = 8
_BYTES_PER_S = 1024 * 1024
# Who has failed after so long has met a silent server; for so long nobody else waits for it.
_LONG_S = 5.0
_SILENCE_S = 10.0

_log = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SpoolingStore:
    """An `ArtifactStore` before another.

    Attributes:
        store: The store that keeps everything in the end.
        spool: Where things wait.
        unavailable: What a caller gets whose file has to wait: `spool` a pending record, `fail` `E_STORE`.
        now: The present time.
        quota: How much may wait of one user's files. What the store has of them is not counted in: it
            counts that itself when it takes them.
        patience_s: How long the store may take for a file before that waits, in seconds, and a second
            more for each MiB.
    """

    store: ArtifactStore
    spool: Spool
    unavailable: Literal["fail", "spool"] = "spool"
    now: Callable[[], datetime] = _utc_now
    quota: Quota = field(default_factory=Quota)
    patience_s: float = 15.0
    _silence: "_Silence" = field(default_factory=lambda: _Silence(), init=False, repr=False, compare=False)
    _check: Check = field(default_factory=Check, init=False, repr=False, compare=False)
    _meter: Meter = field(default_factory=Meter, init=False, repr=False, compare=False)

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        """Keep bytes."""
        try:
            async with self._counted_patience(len(content)):
                record = await self.store.put_bytes(content, about, scope=scope)
        except CallError as error:
            record = await self._kept(content, about, scope, error)
        await asyncio.to_thread(self._wanted_again, record)
        return record

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        """Keep text as UTF-8; `text/plain` unless `about` says otherwise."""
        return await self.put_bytes(text.encode(errors="replace"), about.as_text(), scope=scope)

    async def put_file(self, source: int | Path, about: Put, *, scope: Scope) -> Record:
        """Keep a regular file, given by its path or by a descriptor, which is read from its start."""
        with opened(source) as fd:
            try:
                async with self._counted_patience(os.fstat(fd).st_size):
                    record = await self.store.put_file(fd, about, scope=scope)
            except CallError as error:
                record = await self._kept(fd, about, scope, error)
        await asyncio.to_thread(self._wanted_again, record)
        return record

    def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it."""
        if record.pending:
            return self._open_pending(record, scope, offset, length)
        return self.store.open(record, scope=scope, offset=offset, length=length)

    async def stat(self, id_: str, *, scope: Scope) -> Record | None:
        """Return the artifact of that id: the one put last, where content has several names."""
        waiting = [k.record for k in await self._waiting(scope) if k.record.id == id_]
        if waiting:
            return waiting[-1]
        stored = await self.store.stat(id_, scope=scope)
        if stored is None or await self._left([stored]):
            return stored
        # That name of it was deleted; it may have others.
        others = [r for r in await self.list(scope=scope) if r.id == id_]
        return max(others, key=lambda record: record.created, default=None)

    async def find(self, name: str, *, scope: Scope) -> Record | None:
        """Return the file of exactly that name."""
        waiting = [k.record for k in await self._waiting(scope) if k.record.name == name]
        if waiting:
            return waiting[-1]
        stored = await self.store.find(name, scope=scope)
        return stored if stored is not None and await self._left([stored]) else None

    async def last_observation(self, name: str, *, scope: Scope) -> Record | None:
        """Return the newest observation of exactly that name."""
        waiting = [k.record for k in await self._waiting(scope) if k.record.name == name]
        waiting = [record for record in waiting if record.said.retention is Retention.OBSERVATIONS]
        stored = await self.store.last_observation(name, scope=scope)
        found = [*waiting, *([] if stored is None else await self._left([stored]))]
        return max(found, key=lambda record: record.created, default=None)

    async def list(self, *, scope: Scope) -> Sequence[Record]:
        """Return all artifacts that the scope may have, by name."""
        kept = await self._waiting(scope)
        stored = await self._left(await self.store.list(scope=scope))
        waiting = [k.record for k in kept if not any(is_same(r, k.record) for r in stored)]
        return sorted([*stored, *waiting], key=lambda r: (r.name is None, r.name or "", r.created))

    async def sizes(self, *, scope: Scope) -> Sequence[int]:
        """Return the length of each content that counts against the quota of the user of `scope`.

        Those that wait here count too: each goes to the store, whose own quota has not seen it yet.
        """
        stored = await self.store.sizes(scope=scope)
        return [*stored, *(await asyncio.to_thread(self.spool.sizes, scope)).values()]

    async def delete(self, id_: str, *, scope: Scope, name: str | None = None) -> bool:
        """Delete an artifact: that name of it, or all of it; say whether there was one."""
        kept = [k for k in await self._waiting(scope) if k.record.id == id_]
        if not kept:
            return await self.store.delete(id_, scope=scope, name=name)
        going = [await self._delete_here(k) for k in kept if name in (None, k.record.name)]
        try:
            stored = await self.store.list(scope=scope)
            gone = [r for r in stored if r.id == id_ and name in (None, r.name)]
            # The store may have given the same file another name.
            going += [
                await self._delete_here(k)
                for k in kept
                if name not in (None, k.record.name) and any(is_same(r, k.record) for r in gone)
            ]
            gone += [r for r in stored if r not in gone and any(is_same(r, k.record) for k in going)]
            for record in gone:
                await self.store.delete(record.id, scope=scope, name=record.name)
        except CallError as error:
            if not going or not error.retryable:
                raise
            for each in going:
                await asyncio.to_thread(self.spool.failed, each, now=self.now())
            return True
        for each in going:
            await asyncio.to_thread(self.spool.forget, each)
        return bool(going or gone)

    async def touch(self, id_: str, *, scope: Scope, expires_at: datetime | None = None) -> bool:
        """Renew the lifetime of an observation from now, or let any artifact end at `expires_at`."""
        kept = [k for k in await self._waiting(scope) if k.record.id == id_]
        for each in kept if expires_at is not None else ():
            said = replace(each.record.said, expires_at=expires_at)
            record = replace(each.record, said=said, expires_at=expires_at)
            await asyncio.to_thread(self.spool.change, replace(each, record=record))
        return bool(kept) or await self.store.touch(id_, scope=scope, expires_at=expires_at)

    async def sweep(self) -> Sequence[Removal]:
        """Remove what has expired and what interrupted operations left behind; return what it was."""
        return [*await asyncio.to_thread(self._sweep), *await self.store.sweep()]

    async def fault(self) -> str | None:
        """Say what is wrong with the store, or with the spool: while the store is away nothing is read."""
        return await self.store.fault() or await self._check.ask(self._fault)

    async def measure(self) -> StoreFacts:
        """Return what waits here, and how often the store did not take a file."""
        waiting = await asyncio.to_thread(self.spool.all)
        return StoreFacts(
            kept_bytes=(await measured(self.store)).kept_bytes,
            pending_files=len(waiting),
            pending_bytes=sum(kept.record.size for kept in waiting),
            failed_puts=self._meter.failed_puts,
        )

    async def verify(self) -> StoreVerdict:
        """Read every content, here and in the store, and hold it against its digest."""
        verdict = await self.store.verify() if isinstance(self.store, Verifiable) else StoreVerdict()
        for kept in await asyncio.to_thread(self.spool.all):
            record = kept.record
            problem = await asyncio.to_thread(self.spool.problem, kept)
            verdict.count(record.shown, place_of(record.scope).area, record.size, problem)
        return verdict

    async def send(self) -> int:
        """Send on what is due, and all the rest once the store took one; return how many it took."""
        for gone in await asyncio.to_thread(self.spool.deleted):
            if gone.due <= self.now():
                await self._delete_there(gone)
        waiting, now = await asyncio.to_thread(self.spool.all), self.now()
        taken = await self._send_several([kept for kept in waiting if kept.due <= now])
        if taken:
            # They wait for the store, and it is back.
            taken += await self._send_several([kept for kept in waiting if kept.due > now])
        return taken

    async def send_all(self, within_s: float) -> int:
        """Send on everything that waits, due or not; return how many files still wait.

        For a server that stops: nobody looks after its spool until another is started on its state folder.
        """
        waiting = await asyncio.to_thread(self.spool.all)
        if waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    if await self.store.fault() is None:
                        _log.info("sending what waits for the store", extra={"files": len(waiting)})
                        await self._send_several(waiting)
        return len(await asyncio.to_thread(self.spool.all))

    async def run(self) -> None:
        """Send on what is due, now and again, until cancelled; what was left by earlier runs too."""
        while True:
            try:
                await self.send()
            except OSError as error:
                _log.warning("spool cannot be used", extra={"reason": error.strerror})
            await asyncio.sleep(_LOOK_S)

    async def _kept(self, source: int | bytes, about: Put, scope: Scope, error: CallError) -> Record:
        # What the store refuses for good, or what is wrong with the file, waiting would not mend.
        if error.code is not Code.E_STORE or not error.retryable:
            raise error
        try:
            record = await asyncio.to_thread(
                self.spool.keep, source, about, scope=scope, now=self.now(), quota=self.quota
            )
        except OSError as failed:
            _log.error("spool cannot be used", extra={"reason": failed.strerror})
            raise error from failed
        _log.warning("artifact waits for the store", extra={"artifact": record.id, "bytes": record.size})
        if self.unavailable == "fail":
            message = f"{error.message}. The file is kept on this machine and goes to the store when it can"
            raise CallError(Code.E_STORE, message, details={**error.details, "kept": True}) from error
        return record

    async def _send_several(self, waiting: Sequence[SpooledFile]) -> int:
        """Send several files at once; those of one user that want one name in their order, who gets it."""
        rivals: dict[tuple[Scope, str | None], builtins.list[SpooledFile]] = {}
        for kept in waiting:
            rivals.setdefault((kept.record.scope.owner, kept.record.said.name), []).append(kept)
        room = asyncio.Semaphore(_AT_ONCE)

        async def in_order(files: Sequence[SpooledFile]) -> int:
            taken = 0
            for kept in files:
                async with room:
                    taken += await self._send(kept)
            return taken

        return sum(await asyncio.gather(*(in_order(files) for files in rivals.values())))

    async def _send(self, kept: SpooledFile) -> bool:
        with self.spool.sending(kept) as fd:
            if fd is None:
                return False
            try:
                await asyncio.to_thread(_check, fd, kept.record)
                with self._meter.counting():
                    stored = await self.store.put_file(fd, kept.record.said, scope=kept.record.scope)
            except CallError as error:
                later = await asyncio.to_thread(self.spool.failed, kept, now=self.now())
                facts = {"artifact": kept.record.id, "attempts": later.attempts, "code": error.code.name}
                _log.warning("artifact still waits for the store", extra=facts)
                return False
            if await asyncio.to_thread(self.spool.sent, kept):
                _log.info("artifact went to the store", extra={"artifact": kept.record.id})
                return True
            # It was deleted on its way; `stored.created` may be later than that.
            gone = await asyncio.to_thread(self.spool.delete, kept, now=max(self.now(), stored.created))
            await self._delete_there(gone)
            return False

    async def _delete_here(self, kept: SpooledFile) -> SpooledFile:
        return await asyncio.to_thread(self.spool.delete, kept, now=self.now())

    async def _delete_there(self, gone: SpooledFile) -> None:
        scope = gone.record.scope
        try:
            for record in await self.store.list(scope=scope):
                if _is_gone(record, gone):
                    await self.store.delete(record.id, scope=scope, name=record.name)
        except CallError as error:
            later = await asyncio.to_thread(self.spool.failed, gone, now=self.now())
            facts = {"artifact": gone.record.id, "attempts": later.attempts, "code": error.code.name}
            _log.warning("deleted artifact may still be in the store", extra=facts)
            return
        await asyncio.to_thread(self.spool.forget, gone)

    async def _left(self, stored: Sequence[Record]) -> builtins.list[Record]:
        deleted = await asyncio.to_thread(self.spool.deleted)
        return [record for record in stored if not any(_is_gone(record, each) for each in deleted)]

    def _wanted_again(self, record: Record) -> None:
        with contextlib.suppress(OSError):
            for gone in self.spool.deleted():
                if is_same(record, gone.record):
                    self.spool.forget(gone)

    @contextlib.asynccontextmanager
    async def _counted_patience(self, size: int) -> AsyncIterator[None]:
        with self._meter.counting():
            async with self._patience(size):
                yield

    @contextlib.asynccontextmanager
    async def _patience(self, size: int) -> AsyncIterator[None]:
        limit_s = self.patience_s + size / _BYTES_PER_S
        begun = time.monotonic()
        if begun < self._silence.until:
            # Somebody has just waited in vain; ten files of one call are not to wait one after the other.
            raise _too_long(limit_s)
        try:
            async with asyncio.timeout(limit_s):
                yield
        except (TimeoutError, CallError) as error:
            now = time.monotonic()
            failed = error if isinstance(error, CallError) else _too_long(limit_s)
            if failed.code is Code.E_STORE and now - begun > _LONG_S:
                self._silence.until = now + _SILENCE_S
            raise failed from None

    async def _waiting(self, scope: Scope) -> builtins.list[SpooledFile]:
        kept = await asyncio.to_thread(self.spool.all)
        now = self.now()
        return [k for k in kept if may_have(k.record, scope) and not has_ended(k.record.expires_at, now=now)]

    @contextlib.asynccontextmanager
    async def _open_pending(
        self, record: Record, scope: Scope, offset: int, length: int | None
    ) -> AsyncIterator[Content]:
        asked = record.id, record.name
        waiting = [k for k in await self._waiting(scope) if (k.record.id, k.record.name) == asked]
        with contextlib.ExitStack() as held:
            fd = None
            if waiting:
                with contextlib.suppress(FileNotFoundError):
                    fd = self.spool.open(waiting[-1])
            if fd is not None:
                held.callback(os.close, fd)
                start, end = span(record.size, offset, length)
                yield FileContent(fd=fd, start=start, end=end, record=record)
                return
        # It has gone to the store in the meantime.
        stored = await self.store.stat(record.id, scope=scope)
        if stored is None:
            raise CallError(Code.E_FILE_NOT_FOUND, f"there is no file {record.name or record.id!r} any more")
        async with self.store.open(stored, scope=scope, offset=offset, length=length) as content:
            yield content

    def _fault(self) -> str | None:
        try:
            try_to_write(self.spool.folder)
        except OSError as error:
            return f"the folder of files that wait for the object store cannot be used: {error.strerror}"
        return None

    def _sweep(self) -> builtins.list[Removal]:
        removed = []
        for kept in self.spool.all():
            record = kept.record
            if has_ended(record.expires_at, now=self.now()):
                self.spool.forget(kept)
                removed.append(
                    Removal(what=record.id, name=record.name, size=record.size, reason=Reason.EXPIRED)
                )
        removed += [
            Removal(what=what, name=None, size=size, reason=Reason.LEFT_BEHIND)
            for what, size in self.spool.sweep()
        ]
        log_removals(removed)
        return removed


def _check(fd: int, record: Record) -> None:
    """Raise `CallError` where what waits here is not what was put: the store would keep it as good."""
    if digest_of(fd) != (record.sha256, record.size):
        raise damaged(record, NOT_WHAT_WAS_PUT)


@dataclass(slots=True)
class _Silence:
    """Until when nobody waits for the store to take a file, by the monotonic clock."""

    until: float = 0.0


def _too_long(limit_s: float) -> CallError:
    return CallError(
        Code.E_STORE,
        f"the object store cannot be used: put took more than {limit_s:.0f} s; try again later",
        details={"operation": "put", "reason": "timeout"},
    )


def _is_gone(stored: Record, gone: SpooledFile) -> bool:
    # What was put after the deletion, by another host even, is wanted.
    return gone.deleted is not None and stored.created <= gone.deleted and is_same(stored, gone.record)
