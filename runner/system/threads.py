"""Work that waits for disks and locks, in threads, for callers that may be cancelled.

A thread cannot be cancelled. A caller that continued would close descriptors that the thread still uses,
and the next opened file would get their numbers. So a cancelled caller waits for its thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import ParamSpec, TypeVar

__all__ = ["in_thread", "run_in_thread"]

P = ParamSpec("P")
R = TypeVar("R")


async def run_in_thread(act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `act` in a thread and return its result; a cancellation takes effect when it has ended."""
    running = asyncio.ensure_future(asyncio.to_thread(act, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        raise


@asynccontextmanager
async def in_thread(block: AbstractContextManager[R]) -> AsyncIterator[R]:
    """Enter a context manager in one thread and exit it in another; an entered one is always exited."""
    entering = asyncio.ensure_future(asyncio.to_thread(block.__enter__))
    try:
        value = await asyncio.shield(entering)
    except asyncio.CancelledError:
        await _ended(entering)
        if entering.exception() is None:
            await run_in_thread(block.__exit__, None, None, None)
        raise
    try:
        yield value
    except BaseException as error:
        if not await run_in_thread(block.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await run_in_thread(block.__exit__, None, None, None)


async def _ended(running: "asyncio.Future[R]") -> None:
    """Wait until something has ended, however often the caller is cancelled meanwhile."""
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            continue
    # Retrieved, so that asyncio does not report it as never retrieved.
    running.exception()
