"""Availability of a store: checked once at a time, within a time limit, and cached for a few seconds.

A disk or a server that hangs would block a thread for each check, and one that works would be occupied by
ten checks a second. So a check runs in a daemon thread, which does not delay the exit of the process, and
its result is cached for a few seconds.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["Check"]


class Check:
    """The cached result of the last check.

    Args:
        limit_s: Time after which an unfinished check counts as a fault, in seconds.
        keep_s: Lifetime of a result, in seconds.
    """

    def __init__(self, *, limit_s: float = 5.0, keep_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._look: Future[str | None] | None = None
        self._started_at = 0.0

    async def ask(self, look: Callable[[], str | None]) -> str | None:
        """Return None if the store is available, else its fault, as one sentence.

        Args:
            look: The check; runs in a thread, and may hang there. Errors that it raises are raised here.
        """
        with self._lock:
            if self._look is None or (
                self._look.done() and time.monotonic() > self._started_at + self._keep_s
            ):
                self._look, self._started_at = _started(look), time.monotonic()
            running, start = self._look, self._started_at
        if not running.done():
            left_s = max(0.0, start + self._limit_s - time.monotonic())
            await asyncio.wait({asyncio.wrap_future(running)}, timeout=left_s)
        if running.done():
            return running.result()
        return f"the store has not answered for {time.monotonic() - start:.0f} s"


def _started(look: Callable[[], str | None]) -> Future[str | None]:
    found: Future[str | None] = Future()
    # A caller that waits may be cancelled; the check is shared and continues.
    found.set_running_or_notify_cancel()

    def run() -> None:
        try:
            found.set_result(look())
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            found.set_exception(error)

    threading.Thread(target=run, name="store-check", daemon=True).start()
    return found
