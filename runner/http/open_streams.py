"""Long-lived responses and their end: events, notifications of a session, subscriptions.

The response to a call ends with its tool. These would last as long as their clients stay connected.

Source: MCP specification 2025-11-25 and 2026-07-28, "Streamable HTTP".
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["EndsWithServer", "OpenStreams", "answer_until_ended", "stays_open"]

_LISTENS = (b"mcp-method", b"subscriptions/listen")


def stays_open(scope: Scope) -> bool:
    """Return whether the response to a request may be a long-lived stream."""
    return scope["type"] == "http" and (scope["method"] == "GET" or _LISTENS in scope["headers"])


async def answer_until_ended(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, on_start: Callable[[anyio.CancelScope], None]
) -> None:
    """Answer a request; a stream is closed in order where it is ended early.

    Args:
        app: The application.
        scope: Of the request.
        receive: Receives from the client.
        send: Sends to it.
        on_start: Is given what ends the answer, once that has turned out to be a stream. A file is handed out
            whole: that ends by itself.
    """
    has_ended = False
    with anyio.CancelScope() as ends:

        async def sent(message: Message) -> None:
            nonlocal has_ended
            if message["type"] == "http.response.start":
                if not any(name.lower() == b"content-length" for name, _ in message["headers"]):
                    on_start(ends)
            elif not message.get("more_body"):
                has_ended = True
            await send(message)

        await app(scope, receive, sent)
    if ends.cancelled_caught and not has_ended:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class OpenStreams:
    """The open streams of a server, which end with it."""

    def __init__(self) -> None:
        self._open: set[anyio.CancelScope] = set()
        self._none = asyncio.Event()

    async def answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and hold its response if it is a stream."""
        mine: list[anyio.CancelScope] = []

        def register(ends: anyio.CancelScope) -> None:
            mine.append(ends)
            self._open.add(ends)

        try:
            await answer_until_ended(app, scope, receive, send, register)
        finally:
            self._open.difference_update(mine)
            if not self._open:
                self._none.set()

    async def end(self, left_s: float) -> None:
        """End the streams that are open; those whose application ends them itself have so many seconds."""
        self._none.clear()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._none.wait()
        for each in tuple(self._open):
            each.cancel()


class EndsWithServer:
    """Middleware that ends streams with their server.

    Args:
        app: The application.
        streams: Holds them.
    """

    def __init__(self, app: ASGIApp, *, streams: OpenStreams) -> None:
        self._app = app
        self._streams = streams

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        if stays_open(scope):
            return self._streams.answer(self._app, scope, receive, send)
        return self._app(scope, receive, send)
