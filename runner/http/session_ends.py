"""The end of an MCP session over HTTP by its client: a successful `DELETE` of `/mcp`.

Elsewhere the header only names a session of any user, and a `DELETE` removes one file.

Source: MCP 2025-11-25, "Streamable HTTP", session management.
"""

from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["SessionEnds"]

_PATH = "/mcp"
_HEADER = "mcp-session-id"


class SessionEnds:
    """Middleware that reports each session that a client has ended.

    Args:
        app: The application.
        ended: Is awaited with the session's id, after the client has its answer.
    """

    def __init__(self, app: ASGIApp, *, ended: Callable[[str], Awaitable[None]]) -> None:
        self._app = app
        self._ended = ended

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        session = _ending(scope)
        if session is None:
            return self._app(scope, receive, send)
        return self._watch(session, scope, receive, send)

    async def _watch(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        granted = False

        async def send_and_watch(message: Message) -> None:
            nonlocal granted
            granted |= message["type"] == "http.response.start" and 200 <= message["status"] < 300
            await send(message)

        await self._app(scope, receive, send_and_watch)
        if granted:
            await self._ended(session)


def _ending(scope: Scope) -> str | None:
    """Return the session that a request ends, if any."""
    if scope["type"] != "http" or (scope["method"], scope["path"]) != ("DELETE", _PATH):
        return None
    return Headers(scope=scope).get(_HEADER)
