"""HTTP connections with bounded request heads, which httptools leaves unbounded, and bounded stalls.

Source: RFC 9110, sections 5.4 and 6.5.1; RFC 6585, section 5; tcp(7), TCP_INFO.
"""

import asyncio
import socket
import struct
from functools import partial

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

__all__ = ["HttpConnection"]

_MOST_HEAD_BYTES = 64 * 1024
_MOST_FIELDS = 200
# Bounds the requests that one turn of the event loop may find in what was read.
_PIECE_BYTES = 4096
# `tcpi_bytes_acked` of struct tcp_info.
_ACKNOWLEDGED = struct.Struct("Q")


class HttpConnection(HttpToolsProtocol):
    """A connection that refuses long heads, ignores trailers and parses pipelined requests in turn.

    It ends when its client acknowledges no byte of a response for `stall_s` seconds; a slow client stays.
    """

    stall_s = 60.0
    _unparsed = b""
    # Received since the last head or piece of a body ended: a head, or trailers.
    _head_bytes = 0
    _is_head = True

    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; from then on, writing is paused while the transport holds unsent bytes."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)

    def pause_writing(self) -> None:
        """Wait for the client, with a limit."""
        super().pause_writing()
        connected = self.transport.get_extra_info("socket")
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            self._check_progress(connected, before=-1)

    def resume_writing(self) -> None:
        """Write again."""
        super().resume_writing()
        self._progressed()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._progressed()
        super().connection_lost(exc)

    def _check_progress(self, connected: socket.socket, *, before: int) -> None:
        # Not the size of the transport's buffer: the kernel takes more only after a third of its own is sent.
        facts = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        # Zero on a kernel that does not count: a response has a head, so a client has acknowledged some.
        acknowledged = _ACKNOWLEDGED.unpack_from(facts, 120)[0] if len(facts) == 128 else 0
        if 0 < acknowledged == before:
            self.transport.abort()
            return
        check = partial(self._check_progress, connected, before=acknowledged)
        self._stall = self.loop.call_later(self.stall_s, check)

    def _progressed(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what was read; leave the rest while parsed requests wait for an earlier response."""
        self._unparsed += data
        at = 0
        while at < len(self._unparsed) and not self.pipeline and not self.transport.is_closing():
            piece = self._unparsed[at : at + _PIECE_BYTES]
            at += len(piece)
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("")
        self._unparsed = self._unparsed[at:]
        if self._unparsed:
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        super().on_message_begin()
        self._is_head, self._head_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; drop a trailer, which a proxy in front may not have checked.

        Raises:
            ValueError: There are too many; the parser stops.
        """
        if self._is_head:
            if len(self.headers) >= _MOST_FIELDS:
                self._head_bytes = _MOST_HEAD_BYTES + 1
                raise ValueError("too many headers")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the head, and answer the request."""
        self._is_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Start the next request, and parse more."""
        super().on_response_complete()
        if self._unparsed:
            self.data_received(b"")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or a head that is too long, and close the connection."""
        if self._head_bytes <= _MOST_HEAD_BYTES:
            super().send_400_response(msg)
            return
        sentence = f"the head of a request has at most {_MOST_HEAD_BYTES} bytes and {_MOST_FIELDS} headers"
        head = f"content-type: text/plain\r\ncontent-length: {len(sentence)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[431] + f"{head}{sentence}".encode())
        self.transport.close()
