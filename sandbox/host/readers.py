"""Readers of many descriptors behind a single epoll descriptor of the event loop.

Adding and removing a reader in asyncio is a good part of the cost of a short call, and each call has three:
frames, output, exit. So an event loop has one epoll for all calls, registered while any of them has a reader.

The writers are not trusted: each callback is charged to the share of the event loop of a worker's user.

Source: epoll(7).
"""

import asyncio
import logging
import select
import time
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from sandbox.loop_share import LoopShare

__all__ = ["Readers"]

log = logging.getLogger(__name__)


class Readers:
    """Callbacks for readable descriptors. Created and closed in one event loop.

    A watched descriptor must be removed before it is closed.

    Args:
        share: Event loop time for the callbacks; a callback rests while it is spent.

    Raises:
        OSError: This process has too many descriptors open.
    """

    def __init__(self, share: LoopShare) -> None:
        self._loop = loop = asyncio.get_running_loop()
        if (found := _of_loops.get(loop)) is None:
            found = _of_loops[loop] = _All(loop)
        self._all = found
        self._share = share
        self._mine: set[int] = set()
        self._pauses: dict[int, asyncio.Handle] = {}
        self._rests = True
        self._closed = False

    def add(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call `callback` in each turn of the loop in which the descriptor has data or is at its end.

        After a rest, or if it returned True, it is called without data too.
        """
        if not self._closed:
            self._all.epoll.register(descriptor, select.EPOLLIN)
            self._all.callbacks[descriptor] = partial(self._call, descriptor, callback)
            self._mine.add(descriptor)

    def remove(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        if descriptor not in self._mine:
            return
        self._mine.discard(descriptor)
        del self._all.callbacks[descriptor]
        pause = self._pauses.pop(descriptor, None)
        if pause is not None:
            pause.cancel()
            return
        try:
            self._all.epoll.unregister(descriptor)
        except OSError as error:
            # The caller closed it too early, which is a fault; it cannot become readable any more.
            log.debug("watched descriptor closed", extra={"fault": str(error)})

    def hurry(self) -> None:
        """Rest no more: the writers have ended, so that there is only so much to read."""
        self._rests = False
        for descriptor, pause in self._pauses.items():
            pause.cancel()
            self._pauses[descriptor] = self._loop.call_soon(self._resume, descriptor)

    def _call(self, descriptor: int, callback: Callable[[], object]) -> None:
        began, is_behind = time.monotonic(), False
        try:
            is_behind = callback() is True
        finally:
            now = time.monotonic()
            rest_s = self._share.spend(now - began, now=now)
            if (is_behind or (rest_s and self._rests)) and descriptor in self._mine:
                self._all.epoll.unregister(descriptor)
                pause_s = rest_s if self._rests else 0.0
                self._pauses[descriptor] = self._loop.call_later(pause_s, self._resume, descriptor)

    def _resume(self, descriptor: int) -> None:
        del self._pauses[descriptor]
        self._all.epoll.register(descriptor, select.EPOLLIN)
        self._all.callbacks[descriptor]()

    def close(self) -> None:
        """Stop watching all descriptors, without closing them."""
        self._closed = True
        for descriptor in tuple(self._mine):
            self.remove(descriptor)


class _All:
    """The descriptors of all readers of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.epoll = select.epoll()
        self.callbacks: dict[int, Callable[[], object]] = {}
        loop.add_reader(self.epoll.fileno(), self._readable)

    def _readable(self) -> None:
        for descriptor, _ in self.epoll.poll(0):
            # A callback may remove the descriptors of others.
            callback = self.callbacks.get(descriptor)
            if callback is None:
                continue
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - as with asyncio's own readers: the others have their turn
                context = {"message": "what reads a descriptor failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _All] = WeakKeyDictionary()
