"""Requests whose client disconnected before the body was complete.

The SDK would treat such a request as an internal failure and log a traceback.
"""

import logging

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["WholeRequests", "again", "note_left"]

log = logging.getLogger(__name__)


class WholeRequests:
    """An ASGI application in front of another, which gets whole requests only.

    Args:
        app: The other. What stands before this one must give it a body in one message.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a complete request."""
        first = await receive()
        if first["type"] == "http.disconnect" or first.get("more_body"):
            note_left(scope)
            await Response(status_code=400)(scope, receive, send)
            return

        await self._app(scope, again(first, receive), send)


def again(first: Message, receive: Receive) -> Receive:
    """Return a `receive` that repeats a message before the rest."""
    sent = False

    async def received() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return first

    return received


def note_left(scope: Scope) -> None:
    """Log a client that disconnected before its request was complete."""
    log.info("client disconnected during request", extra={"method": scope["method"], "path": scope["path"]})
