"""Who may start a call now: a global and a per-user limit, and a queue with a bound.

A user at their own limit waits without holding up anybody else.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from runner.contract.envelope import busy

__all__ = ["Admission"]

_RETRY_AFTER_S = 5


@dataclass(slots=True, kw_only=True)
class Admission:
    """Counts running and waiting calls.

    Attributes:
        max_calls: Calls running at once.
        max_calls_per_user: Calls of one user running at once.
        max_queue: Calls waiting at once; the next one is refused.
    """

    max_calls: int
    max_calls_per_user: int
    max_queue: int
    _running: Counter[str] = field(init=False, default_factory=Counter)
    _waiting: "deque[tuple[str, asyncio.Future[None]]]" = field(init=False, default_factory=deque)

    @asynccontextmanager
    async def admit(self, user: str) -> AsyncIterator[None]:
        """Hold a place for one call of `user`, waiting for one if need be.

        Raises:
            CallError: `E_BUSY`; the queue is full.
        """
        if self._free(user):
            self._running[user] += 1
        else:
            await self._wait(user)
        try:
            yield
        finally:
            self._leave(user)

    def running(self, user: str) -> int:
        """Return how many calls of `user` run now."""
        return self._running[user]

    def _free(self, user: str) -> bool:
        return self._running.total() < self.max_calls and self._running[user] < self.max_calls_per_user

    async def _wait(self, user: str) -> None:
        if len(self._waiting) >= self.max_queue:
            raise busy(_RETRY_AFTER_S)
        entry = (user, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            await entry[1]
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif not entry[1].cancelled():
                # The place was given at the same moment: hand it on.
                self._leave(user)
            raise

    def _leave(self, user: str) -> None:
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        for entry in list(self._waiting):
            waiting_user, future = entry
            # One that was cancelled just now is still listed; it removes itself when its turn comes.
            if not future.done() and self._free(waiting_user):
                self._waiting.remove(entry)
                self._running[waiting_user] += 1
                future.set_result(None)
