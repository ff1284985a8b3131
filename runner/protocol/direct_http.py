"""Tool calls over HTTP, answered without a detour through the SDK's tasks and streams.

A usual request is answered here, byte for byte as by the SDK. Unusual ones are passed to the SDK unchanged:
other methods, malformed requests, headers that mirror arguments, later rounds of a call, sessions that are
unknown or of another user, servers with tracing.

All checks of the endpoint apply before: identity, `Host` and `Origin`, the limit of the body.

Source: MCP specification 2026-07-28 and 2025-11-25, "Streamable HTTP".
"""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from functools import lru_cache, partial
from typing import Any

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.http.whole import again
from runner.protocol.direct import Answerer, DirectCall, is_traced, is_usual
from runner.protocol.direct_http_sessions import HttpSession, answer_in_session
from runner.protocol.http_exchange import HttpExchange
from runner.protocol.internals.answer import error_reply
from runner.protocol.internals.types import StreamableHTTPSessionManager, credential_of

__all__ = ["DirectCalls"]

_LONGEST_BYTES = 64 * 1024
_VERSION_HEADER = b"mcp-protocol-version"
_SESSION = b"mcp-session-id"
_READ_ONCE = frozenset({_VERSION_HEADER, _SESSION, b"mcp-method", b"mcp-name", b"accept", b"content-type"})
_PARAMETER = b"mcp-param-"
_ENCODED = "=?base64?"
_IN_SESSIONS = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
# Made once: `json` would make one for each answer.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_PING_REQUEST = b'{"jsonrpc":"2.0","id":"toolcell-ping","method":"ping"}'
_PING = b": ping\r\n\r\n"


class DirectCalls:
    """An ASGI application in front of the SDK's, which takes the calls that are as usual.

    Args:
        app: The SDK's endpoint, for everything else. It must get a body in one message.
        answer: Answers.
        manager: The SDK's, which keeps the sessions of the handshake era.
    """

    def __init__(
        self, app: ASGIApp, answer: Answerer, manager: StreamableHTTPSessionManager | None = None
    ) -> None:
        self._app = app
        self._answer = answer
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = _headers(scope)
        if headers is None:
            await self._app(scope, receive, send)
            return
        first = await receive()
        body = _body(first)
        answer = None if body is None else self._start_call(body, headers, (scope, receive, send))
        if answer is None:
            answer = self._app(scope, again(first, receive), send)
        await answer

    def _start_call(
        self, body: bytes, headers: Mapping[bytes, bytes], request: tuple[Scope, Receive, Send]
    ) -> Awaitable[None] | None:
        """Start to answer a usual call; return the rest of it, or None for other requests."""
        scope, receive, send = request
        if _SESSION in headers:
            session = self._session(scope, headers[_SESSION].decode("latin-1"))
            return None if session is None else answer_in_session(self._answer, session, body, request)
        exchange = HttpExchange(receive=receive, send=send, ping=lambda: _PING)
        call = None if is_traced() else _call(body, headers, scope, exchange)
        if call is None or not self._answer.takes(call.params["name"]):
            return None
        return _run(exchange, call, self._answer)

    def _session(self, scope: Scope, session: str) -> HttpSession | None:
        """Return the session of a request, if it is open, belongs to the caller, and is usual.

        None otherwise, also where events are stored to be sent once more, or where the SDK looks at `Host`
        and `Origin` itself: then the SDK has to answer.
        """
        manager, live = self._manager, self._answer.connected(session)
        if manager is None or live is None or not live.is_open or live.credential != credential_of(scope):
            return None
        security = manager.security_settings
        if manager.event_store is not None or (security and security.enable_dns_rebinding_protection):
            return None
        return HttpSession(
            id=session,
            live=live,
            wants_json=manager.json_response,
            idle_s=manager.session_idle_timeout,
            ping=partial(self._ping, scope),
        )

    async def _ping(self, scope: Scope) -> None:
        """Send the SDK a ping in a request's session, so that it does not expire."""
        body = {"type": "http.request", "body": _PING_REQUEST, "more_body": False}
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        # It ends by itself: the answer of a ping is one message.
        await self._app({**scope, "headers": headers}, again(body, _never), _discard)


async def _never() -> Message:
    """Stay connected."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def _discard(_message: Message) -> None:
    return None


def _headers(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers of a request that may be a direct call."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        # Two of one name mean different things to different readers.
        if name.startswith(_PARAMETER) or (name in headers and name in _READ_ONCE):
            return None
        headers[name] = value
    usual = (
        _is_of_an_era(headers)
        and _is_json(headers.get(b"content-type", b""), exactly=_SESSION in headers)
        and _takes_both(headers.get(b"accept", b""))
    )
    return headers if usual else None


def _is_of_an_era(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether headers are those of a call in the later era, or of any request in a session."""
    version = headers.get(_VERSION_HEADER)
    if _SESSION in headers:
        # The earliest version with sessions has no header for itself.
        return version is None or version in _IN_SESSIONS
    return version == LATEST_MODERN_VERSION.encode() and headers.get(b"mcp-method") == b"tools/call"


def _is_json(kind: bytes, *, exactly: bool) -> bool:
    """Return whether a type is JSON; what reads requests in sessions knows it in small letters only."""
    named = kind.split(b";")[0]
    return (named.rstrip() if exactly else named.strip().lower()) == b"application/json"


@lru_cache(maxsize=64)
def _takes_both(accept: bytes) -> bool:
    kinds = {kind.split(b";")[0].strip().lower() for kind in accept.split(b",")}
    return {b"application/json", b"text/event-stream"} <= kinds


def _body(message: Message) -> bytes | None:
    """Return the body of a request, if it is all there and not long."""
    body: bytes = message.get("body", b"")
    if message["type"] != "http.request" or message.get("more_body") or len(body) > _LONGEST_BYTES:
        return None
    return body


def _call(
    body: bytes, headers: Mapping[bytes, bytes], scope: Scope, exchange: HttpExchange
) -> DirectCall | None:
    """Return the call of the later era that a request holds, if it holds nothing else."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict) or request.keys() != _KEYS or request["jsonrpc"] != "2.0":
        return None
    number, params = request["id"], request["params"]
    usual = (
        type(number) in (int, str)
        and request["method"] == "tools/call"
        and is_usual(params)
        and _is_named(params["name"], headers.get(b"mcp-name"))
    )
    if not usual:
        return None

    async def notify(method: str, params: Mapping[str, Any]) -> None:
        await exchange.tell(_bytes({"jsonrpc": "2.0", "method": method, "params": dict(params)}))

    return DirectCall(id=number, params=params, scope=scope, notify=notify)


def _is_named(name: str, header: bytes | None) -> bool:
    return header is not None and not name.startswith(_ENCODED) and header.decode("latin-1") == name


async def _run(exchange: HttpExchange, call: DirectCall, answer: Answerer) -> None:
    """Answer a call of the later era, unless its client leaves first: then it is cancelled."""
    owner = asyncio.current_task()
    assert owner is not None  # noqa: S101 - an ASGI application runs in a task
    is_gone = False

    def left() -> None:
        nonlocal is_gone
        is_gone = True
        owner.cancel()

    exchange.watch(left)
    try:
        reply, status = {"jsonrpc": "2.0", "id": call.id, "result": await answer.answer(call)}, 200
    except asyncio.CancelledError:
        # A cancellation from elsewhere has to propagate.
        if not is_gone or owner.uncancel():
            raise
        return
    except Exception as error:  # noqa: BLE001 - told to the client, and logged, as the SDK would
        reply, status = error_reply(call.id, error)
    finally:
        exchange.unwatch()
    await exchange.finish(_bytes(reply), status)


def _bytes(message: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(message).encode()
