"""Checks and limits in front of the SDK's MCP endpoint, which has no options for them.

The SDK refuses bodies above 4 MiB. Its session manager accepts another limit, but FastMCP, which creates that
manager when the application starts, does not pass one. The SDK limits sessions in total, not per user, and
parses bodies with any number of values. Usual calls bypass it.

The SDK keeps the sessions, and this module ends those that are idle: the SDK does not see the calls that
`CallsOverHttp` answers.

Source: MCP specification 2025-11-25, "Streamable HTTP", session management.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from mcp_types import JSONRPCError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.errors import CallError, Code
from runner.http.internals.endpoint import (
    StreamableHTTPSessionManager,
    stand_in_front,
    take_over_idle_sessions,
)
from runner.http.whole import again, note_left
from runner.protocol.internals.connection import credential_of
from runner.protocol.internals.host import hide_bodies_in_errors
from runner.protocol.messages import Unreadable, check_values
from runner.protocol.tool_calls import Answerer, CallsOverHttp, LiveSession
from runner.steps.request import SHORT_BYTES
from sandbox.loop_share import LoopShare

__all__ = ["MOST_OPENING_BYTES", "MOST_SESSIONS", "BoundedBodies", "BoundedSessions", "set_up_endpoint"]

log = logging.getLogger(__name__)

MOST_SESSIONS = 100
"""Most open sessions of one user: each holds about 50 KiB, and a client opens one per window."""

MOST_OPENING_BYTES = 1 << 18
"""Longest request that opens a session: its body is kept with the context of the session."""

_SESSION = b"mcp-session-id"
_VERSION = b"mcp-protocol-version"
_IN_SESSIONS = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)


def set_up_endpoint(
    app: Starlette,
    *,
    max_bytes: int,
    user: Callable[[], str | None],
    direct: Answerer | None,
    session_ended: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Put the checks and limits in front of the MCP endpoint of `app`, once it has started.

    Args:
        app: The application, made by FastMCP's `http_app`.
        max_bytes: Longest body of a request.
        user: Returns the user of the current request; None if unknown.
        direct: Answers usual calls; None: the SDK answers them.
        session_ended: Awaited with the id of each session that its client has ended.

    Raises:
        StartError: When `app` starts, if this version of FastMCP has another structure.
    """

    def front(manager: StreamableHTTPSessionManager, endpoint: ASGIApp) -> ASGIApp:
        bounded = BoundedSessions(
            BoundedBodies(endpoint, user=user),
            idle_s=take_over_idle_sessions(manager),
            user=user,
            connected=(lambda _session: None) if direct is None else direct.connected,
            session_ended=session_ended,
        )
        return bounded if direct is None else CallsOverHttp(bounded, direct, manager)

    hide_bodies_in_errors()
    stand_in_front(app, front, max_bytes=max_bytes)


class BoundedBodies:
    """An ASGI application in front of the endpoint that limits values of a body and the pace of long bodies.

    The SDK would parse any number of values, and log a traceback for a client that has disconnected. Parsing
    holds the event loop, so the long bodies of a user get a share of it, like the frames of a worker.

    Args:
        app: The endpoint. It must receive each body in one message.
        user: Returns the user of the current request; requests of unknown users share None.
    """

    def __init__(self, app: ASGIApp, *, user: Callable[[], str | None]) -> None:
        self._app = app
        self._user = user
        self._shares = WeakValueDictionary[str | None, LoopShare]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        first = await receive()
        if first["type"] == "http.disconnect" or first.get("more_body"):
            note_left(scope)
            await Response(status_code=400)(scope, receive, send)
            return
        received = again(first, receive)
        if len(first.get("body", b"")) <= SHORT_BYTES:
            await self._app(scope, received, send)
            return
        share = self._shares.setdefault(self._user(), LoopShare())
        try:
            await share.rest()
            await share.measured(self._long, first["body"], scope, received, send)
        finally:
            # Its requests keep a share alive; then this timer does until it is full, like a new one.
            full_s = share.at_once / share.per_s + share.rest_s(now=time.monotonic())
            asyncio.get_running_loop().call_later(full_s, id, share)

    async def _long(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_values(body)
        except Unreadable as error:
            # If the body is an answer, its id belongs to a request of ours, not of the client.
            answer = JSONRPCError(jsonrpc="2.0", id=error.id if error.is_request else None, error=error.error)
            text = answer.model_dump_json(by_alias=True, exclude_unset=True)
            await Response(text, status_code=400, media_type="application/json")(scope, receive, send)
            return
        await self._app(scope, receive, send)


@dataclass(slots=True)
class _Open:
    """An open session."""

    user: str | None
    client: object
    credential: object
    requests: int = 0
    used_at: float = field(default_factory=time.monotonic)


class BoundedSessions:
    """An ASGI application in front of the endpoint that limits the sessions of each user.

    A new session ends every session that has been idle for `idle_s`, and at the limit the user's longest-idle
    one. A client whose session has ended opens another, as the protocol requires. A session with a call in
    flight or an open stream is not ended. If all of a user's are in use, the new one is refused.

    Args:
        app: The endpoint. It must receive each body in one message.
        idle_s: How long an idle session is kept, in seconds.
        user: Returns the user of the current request; requests of unknown users share None.
        connected: Returns a live session, whose direct calls bypass this application.
        session_ended: Awaited with the id of each session that its client has ended, after the response.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        idle_s: float,
        user: Callable[[], str | None],
        connected: Callable[[str], LiveSession | None],
        session_ended: Callable[[str], Awaitable[None]] | None,
    ) -> None:
        self._app = app
        self._idle_s = idle_s
        self._user = user
        self._connected = connected
        self._session_ended = session_ended
        self._open: dict[str, _Open] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (named := _header(scope, _SESSION)) is None:
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
            if self._session_ended is not None:
                await self._session_ended(session)

    def _ended(self, session: str) -> None:
        self._open.pop(session, None)
        if (live := self._connected(session)) is not None:
            live.close()

    async def _opened(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that opens a session, if its user may have one more.

        Raises:
            CallError: `E_BUSY`: the user has `MOST_SESSIONS` sessions, and none of them is idle;
                `E_INVALID_ARGUMENT`: the request has more than `MOST_OPENING_BYTES`.
        """
        first = await receive()
        if len(first.get("body", b"")) > MOST_OPENING_BYTES:
            raise CallError(
                Code.E_INVALID_ARGUMENT,
                f"a request that opens a session has {MOST_OPENING_BYTES} bytes at most; "
                "send less about the client, or name a session in Mcp-Session-Id",
            )
        user = self._user()
        expired = time.monotonic() - self._idle_s
        for session in [session for session in self._open if self._idle_since(session) < expired]:
            await self._end(session, scope)
        mine = [session for session, item in self._open.items() if item.user == user]
        if len(mine) >= MOST_SESSIONS:
            idlest = min(mine, key=self._idle_since)
            if self._idle_since(idlest) == math.inf:
                raise CallError(
                    Code.E_BUSY,
                    f"all {len(mine)} MCP sessions that a user may have are in use; "
                    "end one, or close a stream that is open",
                )
            await self._end(idlest, scope)
        # Count it from now on, under a key that no session id can equal.
        unnamed = f"opened by {id(scope)}"
        item = self._open[unnamed] = _Open(user, scope.get("user"), credential_of(scope), requests=1)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Already here: the task may end much later than the response.
                self._open.pop(unnamed, None)
                if message["status"] < 400:
                    names = [value for name, value in message.get("headers", ()) if name.lower() == _SESSION]
                    self._open |= {value.decode("latin-1"): item for value in names}
            await send(message)

        try:
            await self._app(scope, again(first, receive), watched)
        finally:
            self._open.pop(unnamed, None)
            item.requests -= 1
            item.used_at = time.monotonic()

    def _idle_since(self, session: str) -> float:
        """Return the monotonic time of a session's last use; infinity while it is in use."""
        item, live = self._open[session], self._connected(session)
        if item.requests or (live is not None and live.in_flight):
            return math.inf
        return item.used_at if live is None else max(item.used_at, live.called_at)

    async def _end(self, session: str, scope: Scope) -> None:
        """End an idle session as its client would, with a DELETE request derived from `scope`."""
        if (ended := self._open.pop(session, None)) is None:
            return
        request = {**scope, "method": "DELETE", "headers": [(_SESSION, session.encode("latin-1"))]}
        request.pop("user", None)
        if ended.client is not None:
            request["user"] = ended.client
        await self._app(request, _nothing, _discard)
        self._ended(session)
        log.info("idle session ended", extra={"user": ended.user})


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _discard(message: Message) -> None:
    del message
