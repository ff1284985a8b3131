"""Readers of many descriptors, of which the event loop sees only one epoll.

Adding and removing a reader in asyncio is a good part of the cost of a short call, and each call has three:
frames, output, exit. So an event loop has one epoll for all calls, registered while any of them has a reader.

Source: epoll(7).
"""

import asyncio
import logging
import select
from collections.abc import Callable
from weakref import WeakKeyDictionary

__all__ = ["Readers"]

log = logging.getLogger(__name__)


class Readers:
    """Callbacks for readable descriptors. Made in an event loop, and closed there.

    A descriptor that is attended to must not be closed before.

    Raises:
        OSError: This process has too many descriptors open.
    """

    def __init__(self) -> None:
        self._all = _All.of_loop()
        self._mine: set[int] = set()
        self._closed = False

    def add(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call `callback` in each turn of the loop in which there is something to read, or an end."""
        if not self._closed:
            self._all.add(descriptor, callback)
            self._mine.add(descriptor)

    def remove(self, descriptor: int) -> None:
        """Attend to a descriptor no more."""
        if descriptor in self._mine:
            self._mine.discard(descriptor)
            self._all.remove(descriptor)

    def close(self) -> None:
        """Attend to none of them any more; they themselves stay open."""
        self._closed = True
        for descriptor in self._mine:
            self._all.remove(descriptor)
        self._mine.clear()


class _All:
    """The descriptors of all readers of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}
        loop.add_reader(self._epoll.fileno(), self._readable)

    @classmethod
    def of_loop(cls) -> "_All":
        loop = asyncio.get_running_loop()
        found = _of_loops.get(loop)
        if found is None:
            found = _of_loops[loop] = cls(loop)
        return found

    def add(self, descriptor: int, callback: Callable[[], object]) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)
        self._callbacks[descriptor] = callback

    def remove(self, descriptor: int) -> None:
        del self._callbacks[descriptor]
        try:
            self._epoll.unregister(descriptor)
        except OSError as error:
            # Who has closed it before has been at fault; nothing comes from it all the same.
            log.debug("watched descriptor closed", extra={"fault": str(error)})

    def _readable(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            # One of them may have been removed by the one before it.
            callback = self._callbacks.get(descriptor)
            if callback is None:
                continue
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - as with asyncio's own readers: the others have their turn
                context = {"message": "what reads a descriptor failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _All] = WeakKeyDictionary()
