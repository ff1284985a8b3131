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
        loop = asyncio.get_running_loop()
        if (found := _of_loops.get(loop)) is None:
            found = _of_loops[loop] = _All(loop)
        self._all = found
        self._mine: set[int] = set()
        self._closed = False

    def add(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call `callback` in each turn of the loop in which there is something to read, or an end."""
        if not self._closed:
            self._all.epoll.register(descriptor, select.EPOLLIN)
            self._all.callbacks[descriptor] = callback
            self._mine.add(descriptor)

    def remove(self, descriptor: int) -> None:
        """Attend to a descriptor no more."""
        if descriptor not in self._mine:
            return
        self._mine.discard(descriptor)
        del self._all.callbacks[descriptor]
        try:
            self._all.epoll.unregister(descriptor)
        except OSError as error:
            # Who has closed it before has been at fault; nothing comes from it all the same.
            log.debug("watched descriptor closed", extra={"fault": str(error)})

    def close(self) -> None:
        """Attend to none of them any more; they themselves stay open."""
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
            # One of them may have been removed by the one before it.
            callback = self.callbacks.get(descriptor)
            if callback is None:
                continue
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - as with asyncio's own readers: the others have their turn
                context = {"message": "what reads a descriptor failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _All] = WeakKeyDictionary()
