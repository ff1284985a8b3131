"""Sessions over HTTP: the number of each user, idle sessions, and their end.

The SDK keeps the sessions. This module observes the responses that open one, and the requests in it. Calls
that `CallsOverHttp` answers do not pass here: their number and the time of the last one are read from it.

Source: MCP specification 2025-11-25, "Streamable HTTP", session management.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.errors import CallError, Code
from runner.protocol.internals.connection import credential_of
from runner.protocol.tool_calls import LiveSession

__all__ = ["MOST_SESSIONS", "BoundedSessions"]

log = logging.getLogger(__name__)

MOST_SESSIONS = 100
"""Sessions of one user at a time: each holds some 50 KiB, and a client has one for each of its windows."""

_SESSION = b"mcp-session-id"
_VERSION = b"mcp-protocol-version"
_IN_SESSIONS = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)


@dataclass(slots=True)
class _Open:
    """One session that has been opened."""

    user: str | None
    client: object
    credential: object
    requests: int = 0
    used_at: float = field(default_factory=time.monotonic)


class BoundedSessions:
    """An ASGI application in front of the endpoint: no user has more than so many sessions.

    One more ends the user's own that was idle longest. A client whose session has ended begins another, as
    the protocol asks of it. A session in use, by a call or a stream that is open, is not ended: where all of
    them are, the new one is refused.

    Args:
        app: The endpoint. It must get a body in one message.
        idle_s: How long the SDK keeps a session in which no request is served, if it ends any.
        user: Returns whose the present request is; None stands for those of whom that cannot be said.
        connected: Returns the calls of a session that do not come here, since the SDK is not asked.
        session_ended: Awaited with the id of each session that its client has ended, after the response.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        idle_s: float | None,
        user: Callable[[], str | None],
        connected: Callable[[str], LiveSession | None],
        session_ended: Callable[[str], Awaitable[None]],
    ) -> None:
        self._app = app
        self._idle_s = idle_s
        self._user = user
        self._connected = connected
        self._session_ended = session_ended
        self._open: dict[str, _Open] = {}
        self._opening: Counter[str | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        named = _header(scope, _SESSION)
        if named is None:
            opens = scope["method"] == "POST" and _header(scope, _VERSION) in {None, *_IN_SESSIONS}
            await (self._opened if opens else self._app)(scope, receive, send)
            return
        session = named.decode("latin-1")
        known, status = self._open.get(session), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        if known is not None:
            known.requests += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            if known is not None:
                known.requests -= 1
                known.used_at = time.monotonic()
                if status == 404 and known.credential == credential_of(scope):
                    self._ended(session)
        if scope["method"] == "DELETE" and 200 <= status < 300:
            self._ended(session)
            await self._session_ended(session)

    def _ended(self, session: str) -> None:
        self._open.pop(session, None)
        live = self._connected(session)
        if live is not None:
            live.close()

    async def _opened(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that opens a session, if its user may have one more.

        Raises:
            CallError: `E_BUSY`; the user has as many as may be, and none of them is idle.
        """
        user = self._user()
        self._forget_expired()
        mine = {key: item for key, item in self._open.items() if item.user == user}
        if len(mine) + self._opening[user] >= MOST_SESSIONS:
            await self._end_idlest(mine, user, scope)
        self._opening[user] += 1

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                for name, value in message.get("headers", ()):
                    if name.lower() == _SESSION:
                        self._open[value.decode("latin-1")] = _Open(
                            user, scope.get("user"), credential_of(scope)
                        )
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._opening[user] -= 1
            if not self._opening[user]:
                del self._opening[user]

    def _forget_expired(self) -> None:
        """Forget sessions that the SDK has ended as idle."""
        if self._idle_s is None:
            return
        oldest = time.monotonic() - self._idle_s
        for key, item in [*self._open.items()]:
            if not self._is_used(key, item) and self._used_at(key, item) < oldest:
                del self._open[key]

    def _is_used(self, key: str, item: _Open) -> bool:
        live = self._connected(key)
        return item.requests > 0 or (live is not None and bool(live.in_flight))

    def _used_at(self, key: str, item: _Open) -> float:
        live = self._connected(key)
        return item.used_at if live is None else max(item.used_at, live.called_at)

    async def _end_idlest(self, mine: dict[str, _Open], user: str | None, scope: Scope) -> None:
        """End the session that was idle longest, as its client would.

        Raises:
            CallError: `E_BUSY`; none of them is idle.
        """
        idle = [key for key, item in mine.items() if not self._is_used(key, item)]
        if not idle:
            raise CallError(
                Code.E_BUSY,
                f"all {len(mine)} MCP sessions that a user may have are in use; "
                "end one, or close a stream that is open",
            )
        idlest = min(idle, key=lambda key: self._used_at(key, mine[key]))
        ended = self._open.pop(idlest)
        request = {**scope, "method": "DELETE", "headers": [(_SESSION, idlest.encode("latin-1"))]}
        request.pop("user", None)
        if ended.client is not None:
            request["user"] = ended.client
        await self._app(request, _nothing, _discard)
        self._ended(idlest)
        log.info("idle session ended", extra={"user": user, "sessions": len(mine)})


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _discard(message: Message) -> None:
    del message
