"""Who may start a call now: a global and a per-user limit, and a queue with a bound.

A user at their own limit waits without holding up anybody else.
"""

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager
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
    _total: int = field(init=False, default=0)
    _running: dict[str, int] = field(init=False, default_factory=dict)
    _waiting: "deque[tuple[str, asyncio.Future[None]]]" = field(init=False, default_factory=deque)

    def admit(self, user: str) -> AbstractAsyncContextManager[None]:
        """Hold a place for one call of `user`, waiting for one if need be.

        Raises:
            CallError: `E_BUSY`; the queue is full.
        """
        return _Place(self, user)

    async def enter(self, user: str) -> None:
        """Take a place; `leave` gives it back."""
        if self._free(user):
            self._take(user)
        else:
            await self._wait(user)

    def running(self, user: str) -> int:
        """Return how many calls of `user` run now."""
        return self._running.get(user, 0)

    def _free(self, user: str) -> bool:
        return self._total < self.max_calls and self._running.get(user, 0) < self.max_calls_per_user

    def _take(self, user: str) -> None:
        self._total += 1
        self._running[user] = self._running.get(user, 0) + 1

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
                self.leave(user)
            raise

    def leave(self, user: str) -> None:
        """Give a place back, to whoever waits for it first."""
        self._total -= 1
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        for entry in list(self._waiting):
            waiting_user, future = entry
            # One that was cancelled just now is still listed; it removes itself when its turn comes.
            if not future.done() and self._free(waiting_user):
                self._waiting.remove(entry)
                self._take(waiting_user)
                future.set_result(None)


@dataclass(slots=True)
class _Place(AbstractAsyncContextManager[None]):
    """One place. No generator: each call takes one."""

    _admission: Admission
    _user: str

    async def __aenter__(self) -> None:
        await self._admission.enter(self._user)

    async def __aexit__(self, *_: object) -> None:
        self._admission.leave(self._user)
