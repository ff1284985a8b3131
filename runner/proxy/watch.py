"""The timeout ladder over a request to a remote server: notices while it is silent, then the end.

What ends a request cancels it, and the client's session tells the server so.

Source: requirements S1-113 to S1-128; architecture, decision "Ladder for another limit L".
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from runner.contract.envelope import timed_out
from runner.ladder import CallListener
from sandbox.deadlines import Ladder, Rung

__all__ = ["Watched", "watch"]


@dataclass(slots=True, eq=False)
class Watched:
    """A `CallListener` that knows when it heard something last, and whether the client is being asked."""

    listener: CallListener
    ladder: Ladder

    async def notify(self, value: dict[str, Any]) -> None:
        """Pass on a notification of the server; the silence begins anew."""
        self.ladder.progress(time.monotonic())
        await self.listener.notify(value)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the client something; a person may take longer than a server may be silent."""
        self.ladder.pause(time.monotonic())
        try:
            return dict(await self.listener.client.request(method, params))
        finally:
            self.ladder.resume(time.monotonic())


async def watch(
    act: Callable[[Watched], Awaitable[dict[str, Any]]], listener: CallListener
) -> dict[str, Any]:
    """Return what `act` returns, or end it when it is silent or takes too long.

    Raises:
        CallError: `E_TIMEOUT`.
    """
    watched = Watched(listener, Ladder(listener.deadlines, time.monotonic()))
    task = asyncio.ensure_future(act(watched))
    try:
        while not task.done():
            left_s = max(0.0, watched.ladder.wakes_at() - time.monotonic())
            await asyncio.wait({task}, timeout=left_s)
            if task.done():
                break
            for rung in watched.ladder.climb(time.monotonic()):
                last = listener.last_progress
                if rung is Rung.TOTAL_END:
                    raise timed_out(listener.deadlines, limit="total", last_progress=last)
                if rung is Rung.IDLE_END:
                    raise timed_out(listener.deadlines, limit="idle", last_progress=last)
                await listener.rung(rung)
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
