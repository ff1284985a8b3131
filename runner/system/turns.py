"""Turns of the event loop for work on many items.

A server or client determines the length of a list, and the time for its items adds up.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

__all__ = ["in_turns", "turn"]

T = TypeVar("T")

# Longest turn that does not disturb other tasks.
_TURN_S = 0.01


async def turn() -> None:
    """Let all ready callbacks run: a task that yields only once is resumed before timers and sockets."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and give up the event loop after every hundredth of a second."""
    began = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - began > _TURN_S:
            await turn()
            began = time.monotonic()
