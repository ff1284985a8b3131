"""TLS handshakes under way: how many there may be, in all and from one address.

A handshake costs a descriptor and memory before anybody knows whose it is, and who wants to may take its
time. An honest one takes a moment. So where a bound is reached, the newcomer is let in and the one goes that
began longest ago: of the newcomer's address, or of the address that has most.

Source: RFC 4987, 3.4 ("Recycling the Oldest Half-Open TCP"), for the same trouble one layer below.
"""

import contextlib
import socket
from dataclasses import dataclass, field
from typing import Self

from sandbox.host import descriptors

__all__ = ["Handshakes"]

_SHARE_OF_DESCRIPTORS = 8
_MOST = 512


@dataclass(slots=True, kw_only=True, eq=False)
class Handshakes:
    """The handshakes of one listening socket.

    Attributes:
        most: How many there may be.
        most_of_one: How many there may be from one address.
    """

    most: int
    most_of_one: int
    _of: dict[str, dict[socket.socket, None]] = field(init=False, default_factory=dict)

    @classmethod
    def usual(cls) -> Self:
        """Return bounds that go with the descriptors of this process; one address gets half of them."""
        most = max(16, min(descriptors.limit() // _SHARE_OF_DESCRIPTORS, _MOST))
        return cls(most=most, most_of_one=most // 2)

    @property
    def count(self) -> int:
        """How many are under way."""
        return sum(map(len, self._of.values()))

    def begin(self, connection: socket.socket, address: str) -> None:
        """Take in one more, and end another for it where there are too many."""
        mine = self._of.get(address, {})
        if len(mine) >= self.most_of_one:
            self._end_oldest(address)
        elif self.count >= self.most:
            self._end_oldest(max(self._of, key=lambda each: len(self._of[each])))
        self._of.setdefault(address, {})[connection] = None

    def end(self, connection: socket.socket, address: str) -> None:
        """Take note that one has ended, well or not."""
        mine = self._of.get(address, {})
        if connection in mine:
            del mine[connection]
            if not mine:
                del self._of[address]

    def close(self) -> None:
        """End all of them."""
        for address in list(self._of):
            while address in self._of:
                self._end_oldest(address)

    def _end_oldest(self, address: str) -> None:
        oldest = next(iter(self._of[address]))
        self.end(oldest, address)
        # As if its client had hung up: so it ends in the same way wherever it is.
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
