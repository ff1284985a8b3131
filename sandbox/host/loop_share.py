"""Share of the host's event loop for the workers of one user, or for one connection.

A worker determines the load of its host: a frame of a hundred bytes may request a value of a megabyte. So the
time of handling its frames is counted, and above its burst a worker pauses for a multiple of it. Wall time
counts, since on an overloaded machine others wait for all of it.

Source: SECURITY.md, "What is a bug here", on a host that waits.
"""

import asyncio
import time
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from types import coroutine
from typing import TypeVar

from sandbox.token_bucket import TokenBucket

__all__ = ["LoopShare", "LoopTurn"]

T = TypeVar("T")

# As long as nobody minds to wait for a turn.
_LONG_S = 0.005


@dataclass(slots=True, kw_only=True, eq=False)
class LoopShare(TokenBucket):
    """Seconds of the loop that one user's workers may have, and others do not."""

    # An honest tool says much at once, and then works for a while.
    at_once: float = 0.1
    # For each second that it takes, others have two.
    per_s: float = 0.5

    def turn(self) -> "LoopTurn":
        """Count the loop's time until the next suspension."""
        return LoopTurn(self)

    async def rest(self) -> None:
        """Wait for as long."""
        # It may grow meanwhile.
        while rest_s := self.rest_s(now=time.monotonic()):  # noqa: ASYNC110
            await asyncio.sleep(rest_s)

    async def measured(self, work: Awaitable[T]) -> T:
        """Await something, and count the loop time of each of its steps."""
        result: T = await self._steps(work.__await__())
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
    """Loop activity between two moments, without work for others while a caller waits."""

    __slots__ = ("_began", "_share", "_waits", "_waits_since")

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._began = time.monotonic()
        self._waits_since: float | None = None
        # It gets here only once the present worker has to wait.
        self._waits = asyncio.get_running_loop().call_soon(self._wait)

    def _wait(self) -> None:
        self._waits_since = time.monotonic()

    async def end(self) -> None:
        """Count it, and rest if it is time to; after a while without a pause, let others have theirs."""
        self._waits.cancel()
        now = time.monotonic()
        spent_s = (self._waits_since or now) - self._began
        self._share.spend(spent_s, now=now)
        if self._waits_since is None and spent_s > _LONG_S:
            await asyncio.sleep(0)
        await self._share.rest()
