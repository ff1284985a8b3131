"""One HTTP request and its response: plain JSON, or events if a notification precedes the result.

Source: MCP specification 2025-11-25 and 2026-07-28, "Streamable HTTP"; WHATWG HTML, "Server-sent events".
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.types import Receive, Send

__all__ = ["Header", "HttpExchange"]

Header = tuple[bytes, bytes]

# Calls that take less never need to know whether their client is still there.
_PATIENCE_S = 0.05
_PING_S = 15.0
_BEFORE_TYPE = ((b"cache-control", b"no-cache, no-transform"), (b"connection", b"keep-alive"))
_EVENTS = (b"content-type", b"text/event-stream")
_LAST = (b"x-accel-buffering", b"no")


@dataclass(slots=True, kw_only=True)
class HttpExchange:
    """A response that is sent piece by piece, as its parts become known.

    Attributes:
        receive: Where the client is heard to leave.
        send: Where the response goes.
        ping: Returns a comment that keeps a connection alive on which nothing happens.
        more: Headers of its own.
        is_stream: Whether it consists of events in any case.
        is_over: Whether nothing more is sent.
    """

    receive: Receive
    send: Send
    ping: Callable[[], bytes]
    more: Sequence[Header] = ()
    is_stream: bool = False
    is_over: bool = field(init=False, default=False)
    _has_started: bool = field(init=False, default=False)
    _sent_at: float = field(init=False, default=0.0)
    _writing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _patience: asyncio.TimerHandle | None = field(init=False, default=None)
    _watchers: "list[asyncio.Task[None]]" = field(init=False, default_factory=list)

    def watch(self, left: Callable[[], None]) -> None:
        """Watch the client: `left` is called if it disconnects, and it gets keep-alive comments meanwhile."""
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        self._patience = loop.call_later(_PATIENCE_S, self._look_after, left)

    def unwatch(self) -> None:
        """Look after the client no more."""
        if self._patience is not None:
            self._patience.cancel()
        for watcher in self._watchers:
            watcher.cancel()
        # A task that was cancelled keeps where it was, and so this: a circle for the collector.
        self._watchers.clear()

    async def tell(self, message: bytes) -> None:
        """Send a message ahead of the answer; nothing once the response is over."""
        await self._send_piece(_event(message))

    async def finish(self, message: bytes | None, status: int = 200) -> None:
        """Send the answer, or in a stream of events none, and end the response.

        Args:
            message: The answer, as JSON.
            status: Of the response, if it has not begun.
        """
        async with self._writing:
            if self.is_over:
                return
            self.is_over = True
            if not (self.is_stream or self._has_started):
                await self._send_plain(message or b"", status)
                return
            await self._begin()
            last = b"" if message is None else _event(message)
            await self.send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_plain(self, message: bytes, status: int) -> None:
        headers = [(b"content-length", b"%d" % len(message)), (b"content-type", b"application/json")]
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *self.more]})
        await self.send({"type": "http.response.body", "body": message})

    async def _send_piece(self, piece: bytes) -> None:
        async with self._writing:
            # What tells of a call may be a moment late to notice its end.
            if self.is_over:
                return
            await self._begin()
            self._sent_at = asyncio.get_running_loop().time()
            if piece:
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _begin(self) -> None:
        if self._has_started:
            return
        headers = [*_BEFORE_TYPE, _EVENTS, *self.more, _LAST]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        # Not before: who waits for a slow client to take this may be cancelled.
        self._has_started = True

    def _look_after(self, left: Callable[[], None]) -> None:
        self._watchers += [
            asyncio.create_task(self._await_end(left)),
            asyncio.create_task(self._keep_alive()),
        ]

    async def _await_end(self, left: Callable[[], None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        left()

    async def _keep_alive(self) -> None:
        """Send a keep-alive comment to the client and to proxies on the way."""
        if self.is_stream:
            await self._send_piece(b"")
        clock = asyncio.get_running_loop().time
        while True:
            silent_s = clock() - self._sent_at
            if silent_s < _PING_S:
                await asyncio.sleep(_PING_S - silent_s)
            else:
                await self._send_piece(self.ping())


def _event(message: bytes) -> bytes:
    return b"event: message\r\ndata: " + message + b"\r\n\r\n"
