"""Descriptors that something may come from, of which the event loop sees but one.

To give a reader to asyncio and to take it back costs the host a good part of what a short call does, and
each call has three: frames, output, death.

Source: epoll(7).
"""

import asyncio
import select
from collections.abc import Callable

__all__ = ["Readers"]


class Readers:
    """What to call while a descriptor has something to read. Made in an event loop, and closed there.

    Raises:
        OSError: This process has too many descriptors open.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._readable)

    def add(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call `callback` in each turn of the loop in which there is something to read, or an end."""
        if not self._epoll.closed:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._callbacks[descriptor] = callback

    def remove(self, descriptor: int) -> None:
        """Attend to a descriptor no more."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Attend to none of them any more; they themselves stay open."""
        if not self._epoll.closed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._callbacks.clear()
            self._epoll.close()

    def _readable(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            # One of them may have been removed by the one before it.
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()
