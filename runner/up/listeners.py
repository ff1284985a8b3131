"""The sockets that servers listen on, held between two lives of a server.

Whoever connects meanwhile waits, and is answered by the next life.
"""

import socket
from dataclasses import dataclass, field

from runner.system.listening import BACKLOG, listen_on

__all__ = ["Listeners"]

_Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class Listeners:
    """The listening socket of each server, by the address of the server: its host and its port."""

    _held: dict[_Address, socket.socket] = field(default_factory=dict)

    def of(self, address: _Address) -> socket.socket:
        """Return the socket at an address; it stays ours.

        Raises:
            UsageError: The address cannot be listened on.
            OSError: The socket cannot listen any more.
        """
        held = self._held.get(address)
        if held is None:
            held = self._held[address] = listen_on(*address, setting="port in the file of users")
        else:
            # The server before shares it, and may have shut it down.
            held.listen(BACKLOG)
        return held

    def close(self, address: _Address) -> None:
        """Have whoever connects to an address refused, as soon as no server listens there."""
        held = self._held.pop(address, None)
        if held is not None:
            held.close()
