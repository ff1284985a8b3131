"""Share of the host's event loop for the workers of one user, or for one connection.

A worker determines the load of its host: a frame of a hundred bytes may request a value of a megabyte. So the
time of handling its frames is counted, and above its burst a worker pauses for a multiple of it. Wall time
counts, since other tasks wait for all of it on an overloaded machine.

Source: SECURITY.md, "What is a bug here", on a host that waits; epoll(7);
Linux fs/eventpoll.c, ep_poll_callback.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from types import coroutine
from typing import ParamSpec, TypeVar

from sandbox.token_bucket import TokenBucket

__all__ = ["LoopShare", "LoopTurn"]

P = ParamSpec("P")
T = TypeVar("T")

# Longest turn of the loop that does not disturb other tasks.
_LONG_S = 0.005
# A shorter system call costs less than the work that it belongs to, and than counting it.
_SHORT_S = 0.00005
# Slow system calls: a burst of this processor time, and a share of it. Time that a hypervisor takes away may
# count as processor time, so a few of them prove nothing.
_SLOW_CALL_S = 0.005
_SLOW_CALLS_S = 0.3
_SLOW_CALLS_PER_S = 0.02


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class LoopShare(TokenBucket):
    """Event loop seconds available to the workers of one user.

    Attributes:
        slowed: Called if system calls on sockets and pipes of the workers take too long.
    """

    # An honest tool sends a burst, and then works for a while.
    at_once: float = 0.1
    # Each second of loop time is followed by a pause of two.
    per_s: float = 0.5
    slowed: Callable[[], object] = lambda: None
    _slow_calls: TokenBucket = field(
        init=False, default_factory=lambda: TokenBucket(at_once=_SLOW_CALLS_S, per_s=_SLOW_CALLS_PER_S)
    )

    def turn(self) -> "LoopTurn":
        """Count the loop's time until the next suspension."""
        return LoopTurn(self)

    async def rest(self) -> None:
        """Wait until the share is available again."""
        # The wait may grow meanwhile.
        while rest_s := self.rest_s(now=time.monotonic()):  # noqa: ASYNC110
            await asyncio.sleep(rest_s)

    def system_call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a system call on a socket or pipe of a worker, and count its processor time.

        The kernel wakes all watches of the other end in the caller's time, and epoll allows a million.
        """
        began = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            now, spent_s = time.monotonic(), time.thread_time() - began
            if spent_s > _SHORT_S:
                self.spend(spent_s, now=now)
            if spent_s > _SLOW_CALL_S and not self._slow_calls.takes(spent_s, now=now):
                # The caller is still using what this closes.
                asyncio.get_running_loop().call_soon(self.slowed)

    async def measured(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call and await a function, and count the loop time of each of its steps."""
        result: T = await self._steps(work(*args, **kwargs).__await__())
        return result

    @coroutine
    def _steps(self, steps: Generator[object, object, T]) -> Generator[object, object, T]:
        answer: object = None
        raised: BaseException | None = None
        while True:
            began = time.monotonic()
            try:
                waits_for = steps.send(answer) if raised is None else steps.throw(raised)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                now = time.monotonic()
                self.spend(now - began, now=now)
            answer = raised = None
            try:
                answer = yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation too is for what is awaited
                raised = error


class LoopTurn:
    """Loop time between two moments, without the work of other tasks while a caller waits."""

    __slots__ = ("_began", "_share", "_waits", "_waits_since")

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._began = time.monotonic()
        self._waits_since: float | None = None
        # The callback runs only once the current worker has to wait.
        self._waits = asyncio.get_running_loop().call_soon(self._wait)

    def _wait(self) -> None:
        self._waits_since = time.monotonic()

    async def end(self) -> None:
        """Count the turn, and rest if due; after a long turn, yield to other tasks once."""
        self._waits.cancel()
        now = time.monotonic()
        spent_s = (self._waits_since or now) - self._began
        self._share.spend(spent_s, now=now)
        if self._waits_since is None and spent_s > _LONG_S:
            await asyncio.sleep(0)
        await self._share.rest()
