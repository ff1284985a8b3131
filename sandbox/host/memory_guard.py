"""Termination of the largest call before the host and all calls together run out of memory.

The kernel would kill a process without an explanation, and in a container with `memory.oom.group` the host
too. The interval of checks depends on the memory left and the speed at which it can be filled.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from sandbox.host.call_watch import FIRST_LOOK_S
from sandbox.host.job import Job
from sandbox.host.lease import Lease
from sandbox.host.server_memory import ServerMemory
from sandbox.host.usage import processes_of, read_process, socket_bytes
from sandbox.host.worker import Worker
from sandbox.outcome import Ending, Outcome, Reached

__all__ = ["SERVER_MEMORY", "MemoryGuard"]

log = logging.getLogger(__name__)

SERVER_MEMORY = "server_memory_bytes"
"""Limit reached when the host and all calls together use up the memory; not in a policy."""

_SOONEST_S = 0.01
_LATEST_S = 0.5
# More than one process can fill in a second. Several are seldom faster, and the OOM killer is the fallback.
_FILLED_A_SECOND = 4 << 30
# Ending a call with less private memory would not free enough.
_WORTH_BYTES = 4 << 20
_GONE_S = 1.0
# Name of the limit of a user's control group.
_OWN = "total_memory_bytes"


class Holder(Protocol):
    """Holder of memory that can be ended: a call, or a background job of a worker."""

    @property
    def worker(self) -> Worker:
        """The worker."""
        ...

    @property
    def zygote_pid(self) -> int:
        """Process id of its zygote."""
        ...

    def exceeds(self, reached: Reached) -> None:
        """End it for a limit that is reached."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryGuard:
    """A watch over all memory while calls or jobs run.

    Attributes:
        memory: The limit.
    """

    memory: ServerMemory
    _running: "dict[Holder, asyncio.Event]" = field(init=False, default_factory=dict)
    _watching: "asyncio.Task[None] | None" = field(init=False, default=None)
    _kills: int = field(init=False)

    def __post_init__(self) -> None:
        self._kills = self.memory.kills()

    async def watched(self, lease: Lease, running: Awaitable[Outcome]) -> Outcome:
        """Watch while a call runs; return how it ended, with the limit named if the memory was used up.

        Args:
            lease: Lease of the call.
            running: The running call.
        """
        before, over = self._kills, asyncio.Event()
        self._begin(lease, over)
        try:
            outcome = await running
        finally:
            self._running.pop(lease, None)
            over.set()
        if outcome.ending is Ending.CRASHED and outcome.status in (None, "signal SIGKILL"):
            self._kills = self.memory.kills()
            killed = self._kills > before
        else:
            # A user's control group whose limit exceeds the memory available has not reached that limit.
            reached = outcome.reached
            killed = reached is not None and reached.limit == _OWN and reached.value > self.memory.limit_bytes
        if not killed:
            return outcome
        reached = Reached(limit=SERVER_MEMORY, value=self.memory.limit_bytes)
        return replace(outcome, ending=Ending.OVER_LIMIT, reached=reached, may_have_started=True)

    def hold(self, job: Job) -> None:
        """Watch a job between two calls until it ends."""
        # Calls remove themselves; jobs only set their event.
        self._running = {one: ended for one, ended in self._running.items() if not ended.is_set()}
        self._begin(job, job.over)

    def _begin(self, holder: Holder, over: asyncio.Event) -> None:
        self._running[holder] = over
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    async def _watch(self) -> None:
        # Most calls end before the first look.
        await asyncio.sleep(FIRST_LOOK_S)
        while any(not over.is_set() for over in self._running.values()):
            try:
                left = await asyncio.to_thread(self._look)
            except (OSError, KeyError, ValueError) as error:
                log.warning("server memory not readable", extra={"fault": str(error)})
                return
            spare = left - self.memory.reserve_bytes
            if spare < 0:
                await self._make_room()
            await asyncio.sleep(min(max(spare / _FILLED_A_SECOND, _SOONEST_S), _LATEST_S))

    def _look(self) -> int:
        self._kills = self.memory.kills()
        return self.memory.left_bytes()

    async def _make_room(self) -> None:
        """End the largest call, and wait up to `_GONE_S` for its exit."""
        sizes = await asyncio.to_thread(_sizes, tuple(self._running))
        running = [holder for holder in sizes if self._runs(holder) and sizes[holder] >= _WORTH_BYTES]
        if not running:
            return
        largest = max(running, key=sizes.__getitem__)
        used, limit, over = sizes[largest], self.memory.limit_bytes, self._running.pop(largest)
        log.warning("call ended: server memory exhausted", extra={"used": used, "limit": limit})
        largest.exceeds(Reached(limit=SERVER_MEMORY, value=limit, used=used))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE_S):
                await over.wait()

    def _runs(self, holder: Holder) -> bool:
        over = self._running.get(holder)
        return over is not None and not over.is_set()


def _sizes(holders: Iterable[Holder]) -> dict[Holder, int]:
    return {holder: _bytes_of(holder) for holder in holders}


def _bytes_of(holder: Holder) -> int:
    """Return the memory of a call beyond that inherited from its zygote."""
    origin = read_process(holder.zygote_pid)
    baseline = 0 if origin is None else origin.private_bytes
    processes = [read_process(pid) for pid in processes_of(holder.worker.pid, holder.zygote_pid)]
    known = [process for process in processes if process is not None]
    private = sum(max(0, process.private_bytes - baseline) for process in known)
    return private + socket_bytes(known) + max((process.shared_bytes for process in known), default=0)
