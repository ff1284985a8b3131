"""The timeout ladder over a request to a remote server: notices while it is silent, then the end.

Ending a request cancels it, and the client's session sends the cancellation to the server.

Source: requirements S1-113 to S1-128; architecture, decision "Ladder for another limit L".
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from runner.contract.error_messages import timed_out
from runner.errors import CallError
from runner.steps.listener import CallListener
from sandbox.deadlines import Ladder, Rung

__all__ = ["WatchedListener", "watch"]

_ENDS: dict[Rung, Literal["total", "idle"]] = {Rung.TOTAL_END: "total", Rung.IDLE_END: "idle"}


@dataclass(slots=True, eq=False)
class WatchedListener:
    """A `CallListener` with the time of its last message, and whether a request to the client is pending."""

    listener: CallListener
    ladder: Ladder
    _telling: int = 0
    _flushed: asyncio.Event = field(default_factory=asyncio.Event)

    async def notify(self, value: dict[str, Any]) -> None:
        """Pass on a notification of the server and restart the idle limit."""
        self.ladder.progress(time.monotonic())
        self._telling += 1
        try:
            await self.listener.notify(value)
        finally:
            self._telling -= 1
            self._flushed.set()

    async def flush(self) -> None:
        """Wait until every message has been forwarded: after the answer the client does not listen."""
        while self._telling:
            self._flushed.clear()
            await self._flushed.wait()

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send the client a request; a person may take longer than a server may be silent."""
        self.ladder.pause(time.monotonic())
        try:
            return dict(await self.listener.ask(method, params))
        finally:
            self.ladder.resume(time.monotonic())


async def watch(
    act: Callable[[WatchedListener], Awaitable[dict[str, Any]]], listener: CallListener
) -> dict[str, Any]:
    """Return the result of `act`, or end it on silence or at the total limit.

    Raises:
        CallError: `E_TIMEOUT`.
    """
    ladder = Ladder(listener.deadlines, time.monotonic())
    watched = WatchedListener(listener, ladder)

    async def climb() -> CallError:
        """Give notices as their rungs are reached, until the last, at which the call ends."""
        try:
            while True:
                await asyncio.sleep(max(0.0, ladder.wakes_at() - time.monotonic()))
                for rung in ladder.climb(time.monotonic()):
                    if rung in _ENDS:
                        last = listener.last_progress
                        return timed_out(listener.deadlines, limit=_ENDS[rung], last_progress=last)
                    await listener.rung(rung)
        finally:
            scope.cancel()

    with anyio.CancelScope() as scope:
        climbing = asyncio.create_task(climb())
        try:
            result = await act(watched)
            await watched.flush()
            return result
        finally:
            climbing.cancel()
    raise await climbing
