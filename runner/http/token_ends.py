"""A stream ends with the token that it was opened with; every other request is checked when it comes.

A call that began in time is answered: its user was known, and its result is its own. What stays open by
itself (events, what a server tells a session, a subscription) would go on for as long as its client likes.

Source: RFC 6750, section 5.3; MCP specification 2025-11-25 and 2026-07-28, "Streamable HTTP".
"""

import time
from collections.abc import Callable

import anyio
from fastmcp.server.dependencies import get_access_token
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["EndsWithToken"]

_LISTENS = (b"mcp-method", b"subscriptions/listen")


class EndsWithToken:
    """Middleware behind the check of tokens.

    Args:
        app: The application.
        clock: Says the present time in seconds since the epoch.
    """

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.time) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        token = get_access_token() if scope["type"] == "http" and _stays_open(scope) else None
        if token is None or token.expires_at is None:
            await self._app(scope, receive, send)
            return
        left_s = token.expires_at - self._clock()
        is_stream = has_ended = False
        with anyio.CancelScope() as ends:

            async def sent(message: Message) -> None:
                nonlocal is_stream, has_ended
                if message["type"] == "http.response.start":
                    is_stream = not any(name.lower() == b"content-length" for name, _ in message["headers"])
                    if is_stream:
                        # A file is handed out whole: that ends by itself.
                        ends.deadline = anyio.current_time() + left_s
                elif not message.get("more_body"):
                    has_ended = True
                await send(message)

            await self._app(scope, receive, sent)
        if ends.cancelled_caught and not has_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _stays_open(scope: Scope) -> bool:
    return bool(scope["method"] == "GET" or _LISTENS in scope["headers"])
