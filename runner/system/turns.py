"""Turns of the event loop for work on many items.

A list may be as long as a server or client likes, and what each of its items takes adds up.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

__all__ = ["in_turns", "turn"]

T = TypeVar("T")

# As long as nobody minds to wait for a turn.
_TURN_S = 0.01


async def turn() -> None:
    """Let everything that is ready run: a task that yields once is resumed ahead of timers and sockets."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let others have the event loop after every hundredth of a second."""
    began = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - began > _TURN_S:
            await turn()
            began = time.monotonic()
