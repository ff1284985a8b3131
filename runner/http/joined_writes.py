"""What is written to a connection in one turn of the event loop, sent by one system call.

A web server writes the head of a response and its body one after the other. Sent that way they are two system
calls here and two wake-ups of whoever waits for them.

Source: ASGI specification, "Response Start": a head may wait for the first part of its body.
"""

import asyncio
from typing import Any

__all__ = ["JoinedWrites"]

# More than this is worth a system call of its own; and who writes that much has to hear that nobody takes it.
_MOST_BYTES = 16 * 1024


class JoinedWrites:
    """A transport that sends what is written in one turn at its end; all else it passes on.

    Args:
        transport: The transport of a connection.
        loop: Its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        """Send data, at the latest at the end of this turn."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            self._flush()

    def write_eof(self) -> None:
        """Send what is left, and say that nothing more comes."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Send what is left, and close the connection."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Say whether the connection is being closed, which is asked with every request."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._held:
            self._transport.write(b"".join(self._held))
            self._held.clear()
            self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        # Here and not by inheritance: which methods a loop's transports have differs.
        return getattr(self._transport, name)
