"""Bounded waits for servers, in a thread pool with a quota for each user.

A thread that waits for a server is unavailable to everybody else. So each user has a quota of threads, a
caller that waits too long gets an error, and no further request is sent for a caller that has left, so that
its thread is soon free.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

from runner.store.s3.faults import failed

__all__ = ["Waiting", "check_wanted"]

_THREADS = 48
_EACH = 8

R = TypeVar("R")

_give_up_at: ContextVar[float | None] = ContextVar("give_up_at", default=None)


def check_wanted(**_: object) -> None:
    """Send nothing more for somebody who has gone; called before each request, and each attempt at one.

    Raises:
        CallError: `E_STORE`: nobody waits for the answer any more.
    """
    moment = _give_up_at.get()
    if moment is not None and time.monotonic() > moment:
        raise failed("wait", "timeout")


class Waiting:
    """The threads, and who has them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="s3-ask")
        self._turns = weakref.WeakValueDictionary[str, asyncio.Semaphore]()

    async def ask(self, operation: str, user: str, work: Callable[[], R], *, limit_s: float) -> R:
        """Do something in a thread and return its result.

        Args:
            operation: What it is called in an error.
            user: Whose turn it takes.
            work: What to do; it goes on when its caller has given up, as far as its present request.
            limit_s: How long it may take in all, in seconds.

        Raises:
            CallError: `E_STORE`: it took longer; and what `work` raises.
        """
        running = asyncio.ensure_future(self._in_turn(operation, user, work, time.monotonic() + limit_s))
        # A caller that gave up has its timeout; without this, asyncio would log an unhandled exception.
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        # The turn ends with the thread, not with the caller: else one user would have them all in the end.
        done, _ = await asyncio.wait({running}, timeout=limit_s)
        if done:
            return running.result()
        raise failed(operation, "timeout")

    def close(self) -> None:
        """Start no further request; those that have begun end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, operation: str, user: str, work: Callable[[], R], end: float) -> R:
        def run_work() -> R:
            before = _give_up_at.set(end)
            try:
                return work()
            finally:
                _give_up_at.reset(before)

        # It lives as long as somebody of this user waits or works.
        turns = self._turns.setdefault(user, asyncio.Semaphore(_EACH))
        async with turns:
            if time.monotonic() > end:
                raise failed(operation, "timeout")
            return await asyncio.get_running_loop().run_in_executor(self._threads, run_work)
