"""Ends the largest call before the memory of the host and all calls together runs out.

The kernel would kill, without a word; and where a container says that it ends as a whole, the host with it.
How often the guard looks follows from how much is left: nobody fills memory faster than it can be written.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace

from sandbox.lease import Lease
from sandbox.outcome import Ending, Outcome, Reached
from sandbox.server_memory import ServerMemory
from sandbox.usage import processes_of, read_process
from sandbox.watch import FIRST_LOOK_S

__all__ = ["SERVER_MEMORY", "MemoryGuard"]

log = logging.getLogger(__name__)

SERVER_MEMORY = "server_memory_bytes"
"""What is reached where the host and all calls together use what there is; no limit of a policy."""

_SOONEST_S = 0.01
_LATEST_S = 0.5
# More than one process writes to in a second; several are seldom quicker, and the kernel is behind us.
_FILLED_A_SECOND = 4 << 30
# Who has less beyond what its zygote gave it makes no room by ending.
_WORTH_BYTES = 4 << 20
_GONE_S = 1.0
# The limit of a control group of one user.
_OWN = "total_memory_bytes"


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryGuard:
    """Watches the memory of all while calls run.

    Attributes:
        memory: The limit.
    """

    memory: ServerMemory
    _running: "dict[Lease, asyncio.Event]" = field(init=False, default_factory=dict)
    _watching: "asyncio.Task[None] | None" = field(init=False, default=None)
    _kills: int = field(init=False)

    def __post_init__(self) -> None:
        self._kills = self.memory.kills()

    async def watched(self, lease: Lease, running: Awaitable[Outcome]) -> Outcome:
        """Watch while a call runs; return how it ended, with the limit named if the memory was used up.

        Args:
            lease: Its worker.
            running: What runs it to its end.
        """
        before, over = self._kills, asyncio.Event()
        self._running[lease] = over
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            outcome = await running
        finally:
            self._running.pop(lease, None)
            over.set()
        return self._explained(outcome, before)

    def _explained(self, outcome: Outcome, kills_before: int) -> Outcome:
        if outcome.ending is Ending.CRASHED and outcome.status in (None, "signal SIGKILL"):
            self._kills = self.memory.kills()
            killed = self._kills > kills_before
        else:
            # A group of the user's own that may have more than there is has not reached its limit.
            reached = outcome.reached
            killed = reached is not None and reached.limit == _OWN and reached.value > self.memory.limit_bytes
        if not killed:
            return outcome
        reached = Reached(limit=SERVER_MEMORY, value=self.memory.limit_bytes)
        return replace(outcome, ending=Ending.OVER_LIMIT, reached=reached, begun=True)

    async def close(self) -> None:
        """Watch no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    async def _watch(self) -> None:
        # Most calls are over by then.
        await asyncio.sleep(FIRST_LOOK_S)
        while self._running:
            try:
                left = await asyncio.to_thread(self._look)
            except (OSError, KeyError, ValueError) as error:
                log.warning("the memory of the server cannot be seen", extra={"fault": str(error)})
                return
            spare = left - self.memory.reserve_bytes
            if spare < 0:
                await self._make_room()
            await asyncio.sleep(min(max(spare / _FILLED_A_SECOND, _SOONEST_S), _LATEST_S))

    def _look(self) -> int:
        self._kills = self.memory.kills()
        return self.memory.left_bytes()

    async def _make_room(self) -> None:
        """End the largest call, and wait a moment for it to be gone."""
        sizes = await asyncio.to_thread(_sizes, tuple(self._running))
        running = [lease for lease in sizes if lease in self._running and sizes[lease] >= _WORTH_BYTES]
        if not running:
            return
        largest = max(running, key=sizes.__getitem__)
        used, limit, over = sizes[largest], self.memory.limit_bytes, self._running.pop(largest)
        log.warning("a call was ended: the server's memory is used up", extra={"used": used, "limit": limit})
        largest.exceeds(Reached(limit=SERVER_MEMORY, value=limit, used=used))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE_S):
                await over.wait()


def _sizes(leases: Iterable[Lease]) -> dict[Lease, int]:
    return {lease: _bytes_of(lease) for lease in leases}


def _bytes_of(lease: Lease) -> int:
    """Return the memory of a call beyond what its zygote gave to each of its processes."""
    origin = read_process(lease.zygote.pid)
    given = 0 if origin is None else origin.private_bytes
    processes = [read_process(pid) for pid in processes_of(lease.worker.pid, lease.zygote.pid)]
    known = [process for process in processes if process is not None]
    private = sum(max(0, process.private_bytes - given) for process in known)
    return private + max((process.shared_bytes for process in known), default=0)
