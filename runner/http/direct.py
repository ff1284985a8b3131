"""Tool calls of the modern era over HTTP, answered without a detour through tasks and streams.

Such a call is one POST that needs nothing but itself. The SDK serves it with a task group, two tasks and a
stream between them, which is much of what the host does for a call. So a request that is exactly what a
client sends is taken here, and answered byte by byte as the SDK would. Whatever is unusual in it goes to
the SDK as it came: other methods and eras, malformed requests, headers that mirror arguments, later rounds
of a call, a server that traces.

It stands behind every check of the endpoint: identity, `Host` and `Origin`, the limit of the body.

Source: MCP specification 2026-07-28, "Streamable HTTP".
"""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mcp_types.version import LATEST_MODERN_VERSION
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.direct import Answer, DirectCall, Notify, is_traced, is_usual
from runner.internals.answer import error_reply

__all__ = ["DirectCalls"]

_LONGEST_BYTES = 64 * 1024
_VERSION_HEADER = b"mcp-protocol-version"
_READ_ONCE = frozenset({_VERSION_HEADER, b"mcp-method", b"mcp-name", b"accept", b"content-type"})
_SESSION = b"mcp-session-id"
_PARAMETER = b"mcp-param-"
_ENCODED = "=?base64?"
_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
# Calls that take less never need to know whether their client is still there.
_PATIENCE_S = 0.05
# Made once: `json` would make one for each answer.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_PING_S = 15.0
_PING = b": ping\r\n\r\n"
_EVENTS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)


class DirectCalls:
    """An ASGI application in front of the SDK's, which takes the calls that are as usual.

    Args:
        app: The SDK's endpoint, for everything else. It must get a body in one message.
        answer: Answers.
    """

    def __init__(self, app: ASGIApp, answer: Answer) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = _headers(scope)
        if headers is None or is_traced():
            await self._app(scope, receive, send)
            return
        first = await receive()
        exchange = _Exchange(receive, send)
        call = _call(first, headers, scope, exchange.notify)
        if call is None or not self._answer.takes(call.params["name"]):
            await self._app(scope, _again(first, receive), send)
            return
        await exchange.run(call.id, self._answer.answer(call))


def _headers(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers of a request that may be a direct call."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        # Two of one name mean different things to different readers.
        if name == _SESSION or name.startswith(_PARAMETER) or (name in headers and name in _READ_ONCE):
            return None
        headers[name] = value
    usual = (
        headers.get(_VERSION_HEADER) == LATEST_MODERN_VERSION.encode()
        and headers.get(b"mcp-method") == b"tools/call"
        and headers.get(b"content-type", b"").split(b";")[0].strip().lower() == b"application/json"
        and _takes_both(headers.get(b"accept", b""))
    )
    return headers if usual else None


@lru_cache(maxsize=64)
def _takes_both(accept: bytes) -> bool:
    kinds = {kind.split(b";")[0].strip().lower() for kind in accept.split(b",")}
    return {b"application/json", b"text/event-stream"} <= kinds


def _call(
    message: Message, headers: Mapping[bytes, bytes], scope: Scope, notify: Notify
) -> DirectCall | None:
    """Return the call that a request holds, if it holds nothing else."""
    body = message.get("body", b"")
    if message["type"] != "http.request" or message.get("more_body") or len(body) > _LONGEST_BYTES:
        return None
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
    return DirectCall(id=number, params=params, scope=scope, notify=notify) if usual else None


def _is_named(name: str, header: bytes | None) -> bool:
    return header is not None and not name.startswith(_ENCODED) and header.decode("latin-1") == name


def _again(first: Message, receive: Receive) -> Receive:
    """Return what gives a message once more, and then the rest."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return first

    return again


@dataclass(slots=True)
class _Exchange:
    """One request and its response: plain JSON, or events once there is something to tell before."""

    _receive: Receive
    _send: Send
    _streams: bool = field(init=False, default=False)
    _is_gone: bool = field(init=False, default=False)
    _is_over: bool = field(init=False, default=False)
    _told_at: float = field(init=False, default=0.0)
    _writing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _watchers: "list[asyncio.Task[None]]" = field(init=False, default_factory=list)

    async def run(self, number: str | int, answer: Awaitable[dict[str, Any]]) -> None:
        """Wait for an answer and send it, unless the client leaves first: then it is cancelled."""
        owner = asyncio.current_task()
        assert owner is not None  # noqa: S101 - an ASGI application runs in a task
        loop = asyncio.get_running_loop()
        self._told_at = loop.time()
        patience = loop.call_later(_PATIENCE_S, self._look_after, owner)
        try:
            reply, status = {"jsonrpc": "2.0", "id": number, "result": await answer}, 200
        except asyncio.CancelledError:
            # Whoever else has cancelled this task wants to hear of it.
            if not self._is_gone or owner.uncancel():
                raise
            return
        except Exception as error:  # noqa: BLE001 - told to the client, and logged, as the SDK would
            reply, status = error_reply(number, error)
        finally:
            patience.cancel()
            for watcher in self._watchers:
                watcher.cancel()
        await self._finish(reply, status)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, ahead of the answer."""
        await self._tell(_event({"jsonrpc": "2.0", "method": method, "params": dict(params)}))

    async def _tell(self, event: bytes) -> None:
        async with self._writing:
            # What tells of a call may be a moment late to notice its end.
            if self._is_over:
                return
            if not self._streams:
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_EVENTS)})
                # Not before: who waits for a slow client to take this may be cancelled.
                self._streams = True
            self._told_at = asyncio.get_running_loop().time()
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def _finish(self, reply: Mapping[str, Any], status: int) -> None:
        async with self._writing:
            self._is_over = True
            if self._streams:
                await self._send({"type": "http.response.body", "body": _event(reply), "more_body": False})
                return
            body = _ENCODER.encode(reply).encode()
            headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})

    def _look_after(self, owner: "asyncio.Task[Any]") -> None:
        self._watchers += [asyncio.create_task(self._await_end(owner)), asyncio.create_task(self._ping())]

    async def _await_end(self, owner: "asyncio.Task[Any]") -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        owner.cancel()

    async def _ping(self) -> None:
        """Keep a connection alive on which nothing happens, which somebody on the way might end."""
        clock = asyncio.get_running_loop().time
        while True:
            silent_s = clock() - self._told_at
            if silent_s < _PING_S:
                await asyncio.sleep(_PING_S - silent_s)
            else:
                await self._tell(_PING)


def _event(message: Mapping[str, Any]) -> bytes:
    return f"event: message\r\ndata: {_ENCODER.encode(message)}\r\n\r\n".encode()
