"""The end of streams at the expiry of their token; all other requests are checked when they are received.

A call that began in time is answered, since its user was known. Long-lived responses (events, notifications
of a session, subscriptions) would last as long as their clients stay connected.

Source: RFC 6750, section 5.3; MCP specification 2025-11-25 and 2026-07-28, "Streamable HTTP".
"""

import time
from collections.abc import Awaitable, Callable

import anyio
from fastmcp.server.dependencies import get_access_token
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.http.open_streams import answer_until_ended, stays_open

__all__ = ["EndsWithToken"]


class EndsWithToken:
    """Middleware behind the check of tokens.

    Args:
        app: The application.
        clock: Says the present time in seconds since the epoch.
    """

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.time) -> None:
        self._app = app
        self._clock = clock

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        if stays_open(scope):
            return self._answer(scope, receive, send)
        return self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = get_access_token()
        if token is None or token.expires_at is None:
            await self._app(scope, receive, send)
            return
        left_s = token.expires_at - self._clock()

        def register(ends: anyio.CancelScope) -> None:
            ends.deadline = anyio.current_time() + left_s

        await answer_until_ended(self._app, scope, receive, send, register)
