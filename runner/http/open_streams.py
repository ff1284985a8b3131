"""Long-lived responses and their end: events, notifications of a session, subscriptions.

The response to a call ends with its tool, and a call that began in time is answered. Streams would last as
long as their clients stay connected. So they end with the server or when their token expires.

Source: MCP specification 2025-11-25 and 2026-07-28, "Streamable HTTP"; RFC 6750, section 5.3.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import anyio
from fastmcp.server.dependencies import get_access_token
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["EndsStreams", "OpenStreams"]

_LISTENS = (b"mcp-method", b"subscriptions/listen")


class OpenStreams:
    """The open streams of a server, which end with it."""

    def __init__(self) -> None:
        self._open: set[anyio.CancelScope] = set()
        self._none = asyncio.Event()

    def add(self, ends: anyio.CancelScope) -> None:
        """Add a stream, by the scope that cancels it."""
        self._open.add(ends)

    def discard(self, ends: anyio.CancelScope) -> None:
        """Remove a stream."""
        self._open.discard(ends)
        if not self._open:
            self._none.set()

    async def end(self, left_s: float) -> None:
        """Cancel the open streams, after `left_s` seconds in which their applications may end them."""
        self._none.clear()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._none.wait()
        for each in tuple(self._open):
            each.cancel()


class EndsStreams:
    """Middleware, after token verification, that ends streams with their server and their token.

    Args:
        app: The application.
        streams: The open streams.
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(self, app: ASGIApp, *, streams: OpenStreams, clock: Callable[[], float] = time.time) -> None:
        self._app = app
        self._streams = streams
        self._clock = clock

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        if scope["type"] == "http" and (scope["method"] == "GET" or _LISTENS in scope["headers"]):
            return self._answer(scope, receive, send)
        return self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; terminate the body properly if its stream is cancelled."""
        token, has_ended = get_access_token(), False
        with anyio.CancelScope() as ends:

            async def sent(message: Message) -> None:
                nonlocal has_ended
                if message["type"] == "http.response.start":
                    # A response of known length, such as a file, ends by itself.
                    if not any(name.lower() == b"content-length" for name, _ in message["headers"]):
                        self._streams.add(ends)
                        if token is not None and token.expires_at is not None:
                            ends.deadline = anyio.current_time() + token.expires_at - self._clock()
                elif not message.get("more_body"):
                    has_ended = True
                await send(message)

            try:
                await self._app(scope, receive, sent)
            finally:
                self._streams.discard(ends)
        if ends.cancelled_caught and not has_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
