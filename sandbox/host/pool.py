"""Pool of parked workers of one policy, forked or one-shot, ahead of need.

A program that starts threads or processes while it loads cannot be forked safely, and a forked process cannot
get its own files in a shared /proc (`sandbox.layers.proc`). For these a pool keeps one-shot interpreters
instead, each loaded before its call: slower to refill, as fast when stocked.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sandbox.errors import ZygoteDied
from sandbox.host import descriptors
from sandbox.host.lease import Lease
from sandbox.host.parking import same_limits
from sandbox.host.retirement import Reuse, why_overused
from sandbox.host.shared_lease import SharedLease, Sharing
from sandbox.host.usage import has_room
from sandbox.host.worker import Worker
from sandbox.host.zygote import Loaded, Zygote
from sandbox.layers.rlimits import may_raise_limits
from sandbox.policy import Limits, Policy

__all__ = ["CALM_S", "IdleWorkers", "Pool", "ZygoteSource"]

log = logging.getLogger(__name__)

# A fork takes a processor for milliseconds, so it waits until the answer of the last call is sent.
_REST_S = 0.003
CALM_S = 30.0
"""Seconds after which unneeded spare workers are given up."""


class ZygoteSource(Protocol):
    """Source of zygotes: a forkserver, or its supervisor."""

    @property
    def alive(self) -> bool:
        """True if zygotes can still be started."""
        ...

    async def zygote(
        self,
        policy: Policy,
        config: Mapping[str, object],
        *,
        home_fd: int | None,
        once: bool = False,
        reuse: Reuse | None = None,
    ) -> Zygote:
        """Fork a zygote: see `sandbox.host.forkserver.Forkserver.zygote`."""
        ...


@dataclass(slots=True, kw_only=True)
class IdleWorkers:
    """The number of workers that a pool keeps parked: as many as recent concurrent calls needed.

    A call that finds no parked worker waits for a fork, and raises the number by one if there is memory. A
    period with a spare worker throughout lowers it by one.

    Attributes:
        least: The initial number, and the minimum.
        most: The maximum.
        size: The current number.
    """

    least: int
    most: int
    size: int = field(init=False)
    _spare: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"a number of {self.least} to {self.most} workers")
        self.size = self.least
        self._spare = self.size

    def found(self, parked: int, *, has_room: Callable[[], bool]) -> None:
        """Record how many parked workers a call found.

        Args:
            parked: Their number, including the one that the call takes.
            has_room: Returns whether there is memory for one more; called only if needed.
        """
        self._spare = min(self._spare, parked - 1)
        if parked == 0 and self.size < self.most and has_room():
            self.size += 1

    def calm(self) -> None:
        """Record that `CALM_S` have passed."""
        if self._spare > 0 and self.size > self.least:
            self.size -= 1
        self._spare = self.size


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """Workers of one policy. Make one with `start`.

    Attributes:
        loaded: Report of the zygote that loaded the program.
        reuse: How long workers stay with their user.
        forks: Whether workers are forked from the zygote; otherwise each is a one-shot interpreter.
    """

    forkserver: ZygoteSource
    policy: Policy
    config: Mapping[str, object]
    home_fd: int | None
    load_timeout_s: float
    idle_workers: IdleWorkers
    loaded: Loaded
    zygote: Zygote
    forks: bool
    reuse: Reuse = field(default_factory=Reuse)
    _parked: list[Zygote] = field(init=False, default_factory=list)
    _oneshots: "deque[asyncio.Task[Zygote]]" = field(init=False, default_factory=deque)
    _resting: asyncio.TimerHandle | None = field(init=False, default=None)
    _calming: asyncio.TimerHandle | None = field(init=False, default=None)
    _is_new: bool = field(init=False, default=True)
    _closed: bool = field(init=False, default=False)
    _sharing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _shares: list[tuple[Zygote, Sharing]] = field(init=False, default_factory=list)

    @classmethod
    async def start(
        cls,
        forkserver: ZygoteSource,
        policy: Policy,
        config: Mapping[str, object],
        *,
        home_fd: int | None,
        load_timeout_s: float,
        idle_workers: IdleWorkers,
        reuse: Reuse | None = None,
        forks: bool = True,
    ) -> "Pool":
        """Load the program under `policy` and park workers.

        Args:
            forkserver: Source of zygotes.
            policy: What the workers may touch.
            config: For the program's `load`.
            home_fd: Descriptor of the policy's home; must stay open as long as the pool.
            load_timeout_s: Seconds the program may take to load, and a worker to get ready.
            idle_workers: Number of workers to keep parked.
            reuse: How long workers stay with their user; by default each serves one call.
            forks: Whether workers may be forked from the zygote; if not, each loads the program for itself.

        Raises:
            LoadError: The author's file is at fault.
            ConfinementError: A layer could not be put in place.
            ZygoteDied: The zygote ended while loading.
        """
        reuse = reuse or Reuse()
        policy = replace(policy, renewable=reuse.calls > 1 and not may_raise_limits())
        zygote = await forkserver.zygote(policy, config, home_fd=home_fd, reuse=reuse)
        try:
            loaded = await zygote.load(load_timeout_s)
        except BaseException:
            # Also when the caller is cancelled: otherwise it would live until the forkserver ends it.
            zygote.close()
            raise
        pool = cls(
            forkserver=forkserver,
            policy=policy,
            config=config,
            home_fd=home_fd,
            load_timeout_s=load_timeout_s,
            idle_workers=idle_workers,
            loaded=loaded,
            zygote=zygote,
            # In a one-shot worker, a process that the import starts belongs to the call and its limits.
            forks=forks and loaded.threads == 1 and not (loaded.has_children and zygote.import_processes()),
            reuse=reuse,
        )
        if not pool.forks:
            zygote.close()
        pool.refill()
        return pool

    @property
    def alive(self) -> bool:
        """True if workers can still be leased."""
        return not self._closed and (self.zygote.alive or not self.forks)

    def refill(self) -> None:
        """Request missing workers, without waiting for them."""
        self._trim(self.idle_workers.most)
        self._calm_later()
        if self._closed or not descriptors.are_plenty():
            # A call that finds no worker orders one itself.
            return
        if self.forks:
            self.zygote.order(self.idle_workers.size - self.zygote.idle)
            return
        # Each has imported the whole program itself: too expensive to keep more of them temporarily.
        parked = sum(zygote.at_hand for zygote in self._parked)
        while len(self._oneshots) + parked < max(1, self.idle_workers.least):
            self._oneshots.append(asyncio.create_task(self._oneshot()))

    def refill_later(self) -> None:
        """Refill in a moment; at once, if no worker is available."""
        if not self.forks or self.zygote.idle == 0:
            self.refill()
        elif self._resting is None and self.zygote.idle < self.idle_workers.size:
            self._resting = asyncio.get_running_loop().call_later(_REST_S, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.refill()

    async def lease(
        self,
        limits: Limits,
        *,
        keeps: bool = False,
        goes_on: bool = False,
        session: str | None = None,
        shares: bool = False,
    ) -> Lease:
        """Lease one worker. The caller must call `run` of the lease, or `retire`, which returns it unused.

        Args:
            limits: The limits of the call.
            keeps: Whether the worker may have served calls of its user before, and may stay afterwards.
                Then the lease must be released.
            goes_on: Whether a worker that stays keeps running between calls.
            session: The session of the call; its end ends that background work.
            shares: Whether a worker that stays may serve it together with other calls.

        Raises:
            SandboxError: No worker could get ready; the message says why.
        """
        keeps = keeps and self.reuse.calls > 1
        narrows = limits != self.policy.limits
        if keeps and shares:
            # One at a time: two concurrent calls would each get a worker of their own.
            async with self._sharing:
                zygote, sharing = await self._shared(limits)
                lease = SharedLease(
                    zygote=zygote,
                    worker=sharing.worker,
                    sharing=sharing,
                    limits=limits,
                    narrows=narrows,
                    home_fd=self.home_fd,
                    keeps=True,
                    goes_on=goes_on,
                    session=session,
                )
                # Reserved without an await, so that the worker is not parked meanwhile.
                sharing.leased.add(lease)
                return lease
        take = self._take if self.forks else self._take_oneshot
        zygote, worker = await take(limits, fresh=not keeps)
        return Lease(
            zygote=zygote,
            worker=worker,
            limits=limits,
            narrows=narrows,
            home_fd=self.home_fd,
            keeps=keeps,
            goes_on=keeps and goes_on,
            session=session,
        )

    async def _shared(self, limits: Limits) -> tuple[Zygote, Sharing]:
        """Return a worker in use that another call may join, or an idle one."""
        # Those that another call may join.
        self._shares = [
            (zygote, sharing)
            for zygote, sharing in self._shares
            if sharing.leased and not (sharing.is_drained or sharing.is_dead)
        ]
        now = time.monotonic()
        for zygote, sharing in self._shares:
            worker = sharing.worker
            fits = same_limits(worker.limits, limits) and worker.is_running() and zygote.alive
            if fits and (not worker.calls or why_overused(worker, self.reuse, now=now) is None):
                return zygote, sharing
        take = self._take if self.forks else self._take_oneshot
        zygote, worker = await take(limits, fresh=False, shared=True)
        sharing = Sharing(worker=worker)
        self._shares.append((zygote, sharing))
        return zygote, sharing

    async def _take(self, limits: Limits, *, fresh: bool, shared: bool = False) -> tuple[Zygote, Worker]:
        # The first call of a pool never finds a parked worker, so it does not count.
        if self._is_new:
            self._is_new = False
        else:
            self.idle_workers.found(self.zygote.at_hand, has_room=has_room)
            self._calm_later()
        worker = await self.zygote.take(self.load_timeout_s, limits, fresh=fresh, shared=shared)
        return self.zygote, worker

    async def _take_oneshot(
        self, limits: Limits, *, fresh: bool, shared: bool = False
    ) -> tuple[Zygote, Worker]:
        self._parked = [zygote for zygote in self._parked if zygote.alive]
        for zygote in () if fresh else reversed(self._parked):
            worker = zygote.parking.take(limits, shared=shared)
            if worker is not None:
                # The most recently used zygote is tried first.
                self._parked.remove(zygote)
                self._parked.append(zygote)
                return zygote, worker
        zygote = await (self._stocked() or self._oneshot())
        try:
            worker = await zygote.take(self.load_timeout_s, limits, shared=shared)
        except BaseException:
            # Nothing else refers to it.
            zygote.close()
            raise
        if not fresh:
            self._parked.append(zygote)
        return zygote, worker

    def _trim(self, most: int) -> None:
        """End idle workers above `most`, least recently used first; always keep one."""
        most = max(1, most)
        if self.forks:
            self.zygote.dismiss(self.zygote.idle - most)
            return
        waiting = [zygote for zygote in self._parked if zygote.at_hand and not zygote.jobs()]
        for zygote in waiting[: max(0, len(waiting) - most)]:
            self._parked.remove(zygote)
            zygote.close()

    def _calm_later(self) -> None:
        waiting = self.zygote.idle if self.forks else sum(zygote.at_hand for zygote in self._parked)
        target = self.idle_workers
        is_more = target.size > target.least or waiting > max(1, target.size)
        if is_more and not self._closed and self._calming is None:
            self._calming = asyncio.get_running_loop().call_later(CALM_S, self._calm)

    def _calm(self) -> None:
        self._calming = None
        if self._closed:
            return
        self.idle_workers.calm()
        self._trim(self.idle_workers.size)
        self._calm_later()

    @property
    def has_jobs(self) -> bool:
        """True if a worker has a job."""
        return any(zygote.jobs() for zygote in (self.zygote, *self._parked))

    def end_jobs(self, session: str) -> None:
        """End the workers whose jobs all belong to one session."""
        for zygote in (self.zygote, *self._parked):
            zygote.end_jobs(session)

    def _stocked(self) -> "asyncio.Task[Zygote] | None":
        """Return a one-shot that is loaded or loading; drop those that have ended."""
        while self._oneshots:
            task = self._oneshots.popleft()
            if not task.done() or (_succeeded(task) and task.result().alive):
                return task
        return None

    def finish(self) -> Awaitable[None]:
        """Let idle workers finish, within a bound, then kill all workers.

        None can be leased from now on. If the program has nothing to finish, all are killed at once.
        """
        self._closed = True
        if self.loaded.hello.get("finishes") is True:
            return asyncio.ensure_future(self._finish())
        self.close()
        return asyncio.sleep(0)

    async def _finish(self) -> None:
        stocked = [task.result() for task in self._oneshots if task.done() and _succeeded(task)]
        try:
            await asyncio.gather(*(zygote.finish() for zygote in (self.zygote, *self._parked, *stocked)))
        finally:
            self.close()

    def close(self) -> None:
        """Kill every zygote and worker of this pool."""
        self._closed = True
        self.zygote.close()
        for zygote in self._parked:
            zygote.close()
        for oneshot in self._oneshots:
            oneshot.add_done_callback(_close_unused)
            oneshot.cancel()
        self._oneshots.clear()

    async def ready(self) -> None:
        """Wait until one worker is parked, which proves that the program's workers can get ready.

        Raises:
            SandboxError: They cannot; the message says why.
        """
        if self.forks:
            worker = await self.zygote.take(self.load_timeout_s)
            self.zygote.park(worker)

    async def _oneshot(self) -> Zygote:
        if not self.forkserver.alive:
            raise ZygoteDied("the forkserver has ended")
        zygote = await self.forkserver.zygote(
            self.policy, self.config, home_fd=self.home_fd, once=True, reuse=self.reuse
        )
        try:
            await zygote.load(self.load_timeout_s)
        except BaseException:
            zygote.close()
            raise
        return zygote


def _close_unused(oneshot: "asyncio.Task[Zygote]") -> None:
    if _succeeded(oneshot):
        oneshot.result().close()


def _succeeded(oneshot: "asyncio.Task[Zygote]") -> bool:
    return not oneshot.cancelled() and oneshot.exception() is None
