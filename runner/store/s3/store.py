"""The store in a bucket of an S3 server. Only the bucket is authoritative; any number of hosts may share it.

Source: document 004, sections 5.2 to 5.6; requirements S1-10, S1-11, S1-70; rule R1 of the conformance
cases; `docs/decisions/0056-records-and-blobs-over-five-verbs.md`.
"""

import asyncio
import builtins
import contextlib
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from runner.store.blobs import Incoming
from runner.store.checking import Check
from runner.store.content import span
from runner.store.entries import place_of
from runner.store.protocol import Content, Put, Reason, Record, Removal, Scope
from runner.store.retention import RetentionRules, log_removals
from runner.store.s3.blobs import S3Blobs, stopping
from runner.store.s3.bucket import PART_BYTES, BucketAddress, failed, give_up_at
from runner.store.store import BlobStore, lengths_of

__all__ = ["FRESH_S", "STALE_AFTER", "S3Store"]

FRESH_S = 30.0
"""Maximum age of a listing used for a quota, in seconds."""

STALE_AFTER = timedelta(days=7)
"""Age at which a multipart upload counts as left behind: none takes a week."""

# Threads for long puts and sweeps; threads for requests that people wait for; one user's share of these.
_THREADS, _WAITING_THREADS, _WAITING_OF_ONE = 16, 48, 8
_LONG = frozenset({"put", "sweep", "verify"})
# Longest wait of a person, in seconds: for an answer, and for the next MiB of a file.
_ASK_S, _READ_S = 8.0, 30.0
# Each check costs three requests.
_CHECK_S = 15.0

T = TypeVar("T")


class S3Store(BlobStore):
    """An `ArtifactStore` in a bucket.

    Args:
        address: Address of the bucket; no request is sent yet.
        rules: Retention rules.
        clock: Returns the current time; by default the server's.
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
        self._asking = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="s3-ask")
        self._turns = weakref.WeakValueDictionary[str, asyncio.Semaphore]()
        self._check = Check(keep_s=_CHECK_S)

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
            content.in_thread = partial(self._ask, "get", user, limit_s=_READ_S)
            yield content

    def close(self) -> None:
        """Close all connections; no further request is sent, and those in flight end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._s3.close()

    async def _run(self, operation: str, scope: Scope | None, act: Callable[[], T]) -> T:
        if scope is not None and operation not in _LONG:
            return await self._ask(operation, place_of(scope).area, act, limit_s=_ASK_S)
        stop, context = threading.Event(), copy_context()
        context.run(stopping.set, stop)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, act)
        except asyncio.CancelledError:
            stop.set()
            raise

    async def _ask(self, operation: str, user: str, work: Callable[[], T], *, limit_s: float) -> T:
        """Run `work` in a thread, within a time limit and a user's quota of threads.

        A thread that waits for a server is unavailable to everybody else. So a caller that waits too long
        gets an error, and once a caller has gone `work` ends with its current request.
        """
        running = asyncio.ensure_future(self._in_turn(operation, user, work, time.monotonic() + limit_s))
        # A caller that gave up has its timeout; without this, asyncio would log an unhandled exception.
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        # The turn ends with the thread, not with the caller: otherwise one user could occupy all threads.
        done, _ = await asyncio.wait({running}, timeout=limit_s)
        if done:
            return running.result()
        raise failed(operation, "timeout")

    async def _in_turn(self, operation: str, user: str, work: Callable[[], T], end: float) -> T:
        # Set in the context of this task alone.
        give_up_at.set(end)
        # The semaphore lives as long as a request of this user waits or runs.
        turns = self._turns.setdefault(user, asyncio.Semaphore(_WAITING_OF_ONE))
        async with turns:
            if time.monotonic() > end:
                raise failed(operation, "timeout")
            return await asyncio.get_running_loop().run_in_executor(self._asking, copy_context().run, work)

    def _receive(
        self, area: str, source: int | bytes, size: int, about: Put, scope: Scope
    ) -> AbstractContextManager[Incoming]:
        eager = about.is_file and size > PART_BYTES
        if eager:
            lengths = lengths_of(self._known(area, self._fresh_s).entries.values()).values()
            # No stored file has this length, so it is new, and a separate pass for the digest is saved.
            eager = size not in lengths and sum(lengths) + size <= self.rules.files.max_user_bytes
        return self._s3.receive(area, source, about, scope, eager=eager, day=f"{self.clock():%Y%m%d}")

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
