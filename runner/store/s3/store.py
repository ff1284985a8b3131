"""The store in a bucket of an S3 server. The bucket alone is the truth; any number of hosts may share it.

Source: document 004, sections 5.2 to 5.6; requirements S1-10, S1-11, S1-70; rule R1 of the conformance
cases; `docs/decisions/0056-records-and-blobs-over-five-verbs.md`.
"""

import asyncio
import builtins
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from runner.store.areas import place_of, places_for
from runner.store.blobs import Incoming
from runner.store.checking import Check
from runner.store.content import StreamContent, span
from runner.store.entries import Entry
from runner.store.protocol import Content, Put, Reason, Record, Removal, Scope
from runner.store.retention import RetentionRules, has_ended, log_removals
from runner.store.s3.blobs import S3Blobs, stopping
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.conversion import convert
from runner.store.s3.upload import PART_BYTES
from runner.store.s3.waiting import Waiting
from runner.store.store import BlobStore, lengths_of

__all__ = ["FRESH_S", "STALE_AFTER", "S3Store"]

FRESH_S = 30.0
"""Maximum age of a listing used for a quota, in seconds."""

STALE_AFTER = timedelta(days=7)
"""Age at which an upload in parts counts as left behind: none takes a week."""

# For puts and sweeps, which may take long.
_THREADS = 16
_LONG = frozenset({"put", "sweep", "verify"})
# How long a person waits: for an answer, and for the next MiB of a file.
_ASK_S, _READ_S = 8.0, 30.0
# Each look costs two requests.
_CHECK_S = 15.0

T = TypeVar("T")


class S3Store(BlobStore):
    """An `ArtifactStore` in a bucket.

    Args:
        address: Where the bucket is; nothing is asked of the server yet.
        rules: What may be kept.
        clock: The present time; by default the server's.
        stale_after: Age at which unfinished uploads count as left behind.
    """

    def __init__(
        self,
        address: BucketAddress,
        *,
        rules: RetentionRules | None = None,
        clock: Callable[[], datetime] | None = None,
        stale_after: timedelta = STALE_AFTER,
    ) -> None:
        self._s3 = S3Blobs(address)
        super().__init__(self._s3, rules, clock=clock, fresh_s=FRESH_S)
        self._prefix = address.prefix
        self._stale_after = stale_after
        self._settled_after = min(self._settled_after, stale_after)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="s3")
        self._waiting = Waiting()
        self._check = Check(keep_s=_CHECK_S)
        self._converting: dict[str, threading.Lock] = {}
        self._converted: set[str] = set()

    @asynccontextmanager
    async def open(
        self, record: Record, *, scope: Scope, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[Content]:
        """Open the bytes of a record, or a range of them, for reading; counts as a use of it."""
        start, end = span(record.size, offset, length)
        with contextlib.ExitStack() as held:
            opened = self._opened(record, scope, start, end)
            content = await self._run("get", scope, lambda: held.enter_context(opened))
            user = place_of(scope).area
            content.in_thread = partial(self._waiting.ask, "get", user, limit_s=_READ_S)
            yield content

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._waiting.close()
        self._s3.close()

    async def _run(self, operation: str, scope: Scope | None, act: Callable[[], T]) -> T:
        if scope is not None and operation not in _LONG:
            return await self._waiting.ask(operation, place_of(scope).area, act, limit_s=_ASK_S)
        stop = threading.Event()

        def stoppable() -> T:
            before = stopping.set(stop)
            try:
                return act()
            finally:
                stopping.reset(before)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, stoppable)
        except asyncio.CancelledError:
            stop.set()
            raise

    def _convert(self, prefix: str) -> None:
        if prefix and prefix not in self._converted:
            # One user's silent server is not to hold up anybody else.
            with self._converting.setdefault(prefix, threading.Lock()):
                if prefix not in self._converted:
                    convert(self._s3, prefix)
                    self._converted.add(prefix)

    def _receive(
        self, area: str, source: int | bytes, size: int, about: Put, scope: Scope
    ) -> AbstractContextManager[Incoming]:
        eager = about.is_file and size > PART_BYTES
        if eager:
            lengths = lengths_of(self._known(area, self._fresh_s).entries.values()).values()
            # By its length it is a new file, so a pass of its own for the digest is saved.
            eager = size not in lengths and sum(lengths) + size <= self.rules.files.max_user_bytes
        return self._s3.receive(area, source, about, scope, eager=eager, day=f"{self.clock():%Y%m%d}")

    @contextmanager
    def _opened(self, record: Record, scope: Scope, start: int, end: int) -> Iterator[StreamContent]:
        with contextlib.ExitStack() as held:
            content: StreamContent | None = None
            place, key = place_of(record.scope), record.key or ""
            known = place in places_for(scope) and key.startswith(self._s3.prefix(place.area))
            ended = has_ended(record.expires_at, now=self.clock())
            if known and not ended and record.metadata.is_file:
                # Its bytes are there as long as its record is: no need to ask for that first.
                with contextlib.suppress(FileNotFoundError):
                    entry = Entry(record=record, blob=key, put=0)
                    content = held.enter_context(self._s3.content(entry, start, end))
            yield content or held.enter_context(super()._opened(record, scope, start, end))

    def _sweep(self) -> builtins.list[Removal]:
        removals = super()._sweep()
        now, ended = self._s3.now(), []
        for key, upload, began in self._s3.bucket.uploads(self._prefix):
            if now - began > self._stale_after:
                self._s3.bucket.abort(key, upload)
                what = key.removeprefix(self._prefix)
                ended.append(Removal(what=what, name=None, size=0, reason=Reason.LEFT_BEHIND))
        log_removals(ended)
        return [*removals, *ended]
