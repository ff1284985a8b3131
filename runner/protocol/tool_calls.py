"""Tool calls over HTTP and stdio, in every protocol version, answered without the SDK's tasks and streams.

`CallsOverHttp` stands in front of the SDK's endpoint, and `CallsOverLines` reads stdin in place of the SDK.
Each answers a usual `tools/call` with the bytes that the SDK would send. Everything else goes to the SDK
unchanged: other methods, malformed requests, headers that mirror arguments, later rounds of a call, unknown
or foreign sessions, servers with tracing. `Host`, `Origin`, credentials and bodies are checked before.

A call of 2026-07-28 is self-contained and ends with its response. A call of the handshake era belongs to a
session. It runs in its own task and continues if its client disconnects. The client can cancel it, answer its
questions, and end it with the session.

Source: MCP specification 2025-11-25 and 2026-07-28, "Streamable HTTP", "stdio", "Lifecycle", "Cancellation";
requirement S3-142.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Protocol

import anyio
import mcp_types
import pydantic_core
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import NoBackChannelError
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.http.whole import again
from runner.protocol.internals import types as sdk
from runner.protocol.internals.answer import error_data, status_of
from runner.protocol.internals.connection import connection_of, credential_of
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.protocol.messages import Unreadable, read_message
from runner.steps.listener import ClientRefusal

__all__ = [
    "QUESTION_IDS",
    "Answerer",
    "CallsOverHttp",
    "CallsOverLines",
    "LiveSession",
    "LiveSessions",
    "ToolCall",
]

QUESTION_IDS = "toolcell-question-"
"""Prefix of the ids of our requests to clients; those of the SDK are numbers."""

_LONGEST_BYTES = 64 * 1024
_LAST_WRITE_S = 1.0
# Shorter calls are not watched for a disconnect of their client.
_PATIENCE_S = 0.05
_PING_S = 15.0
_CANCELLED = "notifications/cancelled"
# Every message about a direct call, or a question of one, contains one of these.
_ABOUT_OURS = (_CANCELLED.encode(), QUESTION_IDS.encode())
_REQUEST_CANCELLED = {"code": sdk.REQUEST_CANCELLED, "message": "Request cancelled"}
_CONNECTION_CLOSED = {"code": mcp_types.CONNECTION_CLOSED, "message": "Connection closed"}

_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_READ_ONCE = frozenset({_VERSION, _SESSION, b"mcp-method", b"mcp-name", b"accept", b"content-type"})
_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = frozenset({"name", "arguments", "_meta"})
_EVENTS = (
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
)
_EVENT = b"event: message\r\ndata: %s\r\n\r\n"
# Built once: `json.dumps` would build one for each answer.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(slots=True, kw_only=True, eq=False)
class ToolCall:
    """One `tools/call` in flight, and its client. A `runner.steps.listener.Client`.

    Attributes:
        id: The id of the client's request.
        params: Its params.
        write: Sends the client a message.
        session: Its session; None for a self-contained call over HTTP.
        scope: ASGI scope of its HTTP request; None over stdio.
        connection: The SDK's connection, in the handshake era.
        cancelled: The error with which it was cancelled, if it was.
        is_over: Whether its answer is being sent, so that no further message may precede it.
    """

    id: str | int
    params: dict[str, Any]
    write: Callable[[Mapping[str, Any]], Awaitable[None]]
    session: "LiveSession | None" = None
    scope: Scope | None = None
    connection: sdk.Connection | None = None
    cancelled: Mapping[str, Any] | None = None
    is_over: bool = False
    _task: "asyncio.Task[Any] | None" = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification ahead of the answer; drop it if that is being sent."""
        if not self.is_over:
            await self.write({"jsonrpc": "2.0", "method": method, "params": dict(params)})

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the client a request ahead of the answer, and return its result.

        Raises:
            ClientRefusal: The client refuses, or cannot receive requests.
        """
        if self.is_over or self.session is None or self.connection is None:
            refusal = NoBackChannelError(method).error
            raise ClientRefusal(refusal.code, refusal.message)
        number = f"{QUESTION_IDS}{next(self.session.numbers)}"
        question: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.session.questions[number] = question
        try:
            await self.write({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)})
            return await question
        except asyncio.CancelledError:
            cancelled = {"requestId": number, "reason": "caller cancelled"}
            with anyio.move_on_after(_LAST_WRITE_S, shield=True):
                await self.write({"jsonrpc": "2.0", "method": _CANCELLED, "params": cancelled})
            raise
        finally:
            del self.session.questions[number]

    def cancel(self, error: Mapping[str, Any]) -> None:
        """Cancel the call, once, unless its answer is being sent."""
        if self.cancelled is None and not self.is_over:
            self.cancelled = error
            if self._task is not None:
                self._task.cancel()

    async def outcome(self, answerer: "Answerer") -> dict[str, Any] | None:
        """Return the JSON-RPC answer of the call; None if it was cancelled."""
        self._task = asyncio.current_task()
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": self.id}
        try:
            if self.cancelled is None:
                reply["result"] = await answerer.answer(self)
        except asyncio.CancelledError:
            # A cancellation from elsewhere has to propagate.
            if self.cancelled is None or (self._task is not None and self._task.uncancel()):
                raise
        except Exception as error:  # noqa: BLE001 - an error of JSON-RPC, and a line in the log, as the SDK's
            reply["error"] = error_data(
                error, has_handshake=self.connection is not None, has_session=self.session is not None
            )
        finally:
            self.is_over, self._task = True, None
            if self.session is not None:
                self.session.in_flight.pop(sdk.coerce_request_id(self.id), None)
                self.session.called_at = time.monotonic()
        return None if self.cancelled is not None else reply


class Answerer(Protocol):
    """Protocol of an object that answers tool calls."""

    def takes(self, tool: str) -> bool:
        """Return whether calls of a tool may be answered without the SDK."""
        ...

    def connected(self, session: str | None) -> "LiveSession | None":
        """Return a session, or, for None, the connection over stdio; None if it is not known yet."""
        ...

    async def answer(self, call: ToolCall) -> dict[str, Any]:
        """Return the result of a call. An exception becomes a JSON-RPC error."""
        ...


class LiveSession:
    """One session: the connection over stdio, or a session over HTTP.

    Attributes:
        connection: The SDK's connection. In the modern era that of one request, whose version applies to all.
        has_handshake: Whether its era has a handshake.
        credential: Credential of the client that opened it, in the form that the SDK compares.
        called_at: End of its last call, by the monotonic clock.
        is_open: Whether it has not ended.
        in_flight: Its calls that have not been answered, by id.
        questions: Requests to the client that it has not answered yet, by id.
        numbers: Counter for the ids of further ones.
    """

    def __init__(self, connection: sdk.Connection, credential: object) -> None:
        self.connection = connection
        # The version is one of these even before the handshake ends.
        self.has_handshake = connection.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        self.credential = credential
        self.called_at = time.monotonic()
        self.is_open = True
        self.in_flight: dict[str | int, ToolCall] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.questions: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.numbers = itertools.count(1)

    def accepts(self, request_id: str | int) -> bool:
        """Return whether a call may begin: after the handshake, with no other call of its id in flight."""
        is_ready = self.is_open and self.connection.initialize_accepted
        return is_ready and sdk.coerce_request_id(request_id) not in self.in_flight

    def begin(self, call: ToolCall, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start the work of a call in its own task."""
        self.in_flight[sdk.coerce_request_id(call.id)] = call
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def receive(self, message: JSONRPCMessage) -> bool:
        """Apply a cancellation or an answer to a question here; return whether it is such an answer."""
        if isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            number = (message.params or {}).get("requestId")
            if isinstance(number, int | str) and (call := self.in_flight.get(sdk.coerce_request_id(number))):
                call.cancel(_REQUEST_CANCELLED)
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or not isinstance(message.id, str):
            return False
        question = self.questions.get(message.id)
        if question is not None and not question.done():
            if isinstance(message, JSONRPCResponse):
                question.set_result(message.result)
            else:
                question.set_exception(ClientRefusal(message.error.code, message.error.message))
        return message.id.startswith(QUESTION_IDS)

    def close(self) -> None:
        """End the session: cancel its calls, and accept no more."""
        self.is_open = False
        for call in [*self.in_flight.values()]:
            call.cancel(_CONNECTION_CLOSED)

    async def ended(self) -> None:
        """End the session, and return once its calls have written their last message."""
        self.close()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*self._tasks, return_exceptions=True)


class LiveSessions:
    """The sessions of a server: one over stdio, and each of those over HTTP.

    Attributes:
        known: The sessions by id; the one over stdio has none.
    """

    def __init__(self) -> None:
        self.known: dict[str | None, LiveSession] = {}

    def note(self, ctx: ServerRequestContext[Any, Any]) -> None:
        """Record the session of a request that the SDK serves, until the session ends."""
        connection = connection_of(ctx)
        session = connection.session_id
        if session is None and ctx.request is not None:
            # The modern era has no sessions over HTTP.
            return
        known = self.known.get(session)
        if (
            known is not None
            and known.is_open
            and (known.connection is connection or not known.has_handshake)
        ):
            return
        credential = credential_of(None if ctx.request is None else ctx.request.scope)
        live = self.known[session] = LiveSession(connection, credential)
        if live.has_handshake:
            connection.exit_stack.callback(self._end, session, live)

    def _end(self, session: str | None, live: LiveSession) -> None:
        live.close()
        if self.known.get(session) is live:
            del self.known[session]


class CallsOverHttp:
    """An ASGI application that answers the usual calls in front of the SDK's.

    Args:
        app: The endpoint for everything else. It must receive each body in one message.
        answerer: Answers the usual calls.
        manager: The SDK's manager of the sessions of the handshake era.
    """

    def __init__(self, app: ASGIApp, answerer: Answerer, manager: sdk.StreamableHTTPSessionManager) -> None:
        self._app = app
        self._answerer = answerer
        security = manager.security_settings
        checks = security is not None and security.enable_dns_rebinding_protection
        # The SDK has to answer if it sends plain JSON, stores events, or checks `Host` and `Origin` itself.
        self._is_usual = not (checks or manager.json_response or manager.event_store is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers = _usual_headers(scope) if self._is_usual and not _is_traced() else None
        if headers is None:
            await self._pass_on(scope, receive, send)
            return
        first, session, live = await receive(), headers.get(_SESSION), None
        if session is not None:
            live = self._answerer.connected(session.decode("latin-1"))
        if session is None or (live is not None and live.credential == credential_of(scope)):
            call = _call_in(first, headers, live)
            if call is not None and self._answerer.takes(call.params["name"]):
                call.scope = scope
                response = _Response(session, receive, send)
                call.write = response.write
                await (
                    self._alone(call, response) if live is None else self._in_session(call, live, response)
                )
                return
        await self._pass_on(scope, receive, send, first)

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, first: Message | None = None
    ) -> None:
        """Let the SDK answer; if it accepts a message about a direct call or its question, apply it here."""
        session = next((value for name, value in scope.get("headers", ()) if name == _SESSION), None)
        live = None if session is None else self._answerer.connected(session.decode("latin-1"))
        if first is None and (live is None or scope["method"] != "POST"):
            await self._app(scope, receive, send)
            return
        first = await receive() if first is None else first
        body: bytes = first.get("body", b"")

        async def watched(message: Message) -> None:
            if live is not None and message["type"] == "http.response.start" and message["status"] == 202:
                with suppress(ValueError):
                    live.receive(read_message(body))
            await send(message)

        is_ours = live is not None and any(sign in body for sign in _ABOUT_OURS)
        await self._app(scope, again(first, receive), watched if is_ours else send)

    async def _alone(self, call: ToolCall, response: "_Response") -> None:
        """Answer a self-contained call, unless its client disconnects first: then it is cancelled."""
        response.watch(partial(call.cancel, _REQUEST_CANCELLED))
        try:
            reply = await call.outcome(self._answerer)
        finally:
            response.unwatch()
        if reply is not None:
            await response.finish(reply, status_of(reply))

    async def _in_session(self, call: ToolCall, live: LiveSession, response: "_Response") -> None:
        """Answer a call of the handshake era, which continues if its client disconnects."""
        settled = asyncio.Event()
        task = live.begin(call, call.outcome(self._answerer))
        task.add_done_callback(lambda _: settled.set())
        response.watch(settled.set)
        try:
            await settled.wait()
            # Otherwise the client has disconnected, and the call goes on.
            if task.done():
                reply = task.result() or {"jsonrpc": "2.0", "id": call.id, "error": call.cancelled}
                await response.finish(reply if live.is_open else None)
        finally:
            response.unwatch()
            response.is_over = True


@dataclass(slots=True, eq=False)
class _Response:
    """The response to one call over HTTP: JSON, or events in a session or after a first message.

    Attributes:
        is_over: Whether nothing more is sent.
    """

    _session: bytes | None
    _receive: Receive
    _send: Send
    is_over: bool = False
    _has_started: bool = False
    _sent_at: float = 0.0
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _patience: asyncio.TimerHandle | None = None
    _watcher: "asyncio.Task[None] | None" = None

    def watch(self, left: Callable[[], object]) -> None:
        """Watch the client, and send it keep-alive comments meanwhile; call `left` if it disconnects."""
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()

        def begin() -> None:
            self._watcher = loop.create_task(self._watch(left))

        self._patience = loop.call_later(_PATIENCE_S, begin)

    def unwatch(self) -> None:
        """Stop watching the client."""
        if self._patience is not None:
            self._patience.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        # A cancelled task keeps its traceback, which refers to this response: a reference cycle.
        self._patience = self._watcher = None

    async def finish(self, reply: Mapping[str, Any] | None, status: int = 200) -> None:
        """Send the answer, which is None if the session has ended, and end the response."""
        async with self._writing:
            self.is_over = True
            body = b"" if reply is None else _encoded(reply, is_modern=self._session is None)
            if self._session is None and not self._has_started:
                headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
                await self._send({"type": "http.response.start", "status": status, "headers": headers})
            else:
                await self._start()
                body = b"" if reply is None else _EVENT % body
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def write(self, message: Mapping[str, Any]) -> None:
        """Send a message ahead of the answer."""
        # A disconnected client needs no message.
        with suppress(OSError):
            await self._send_piece(_EVENT % _encoded(message, is_modern=self._session is None))

    async def _send_piece(self, piece: bytes) -> None:
        async with self._writing:
            # A report on the call may arrive just after its end.
            if not self.is_over:
                await self._start()
                self._sent_at = asyncio.get_running_loop().time()
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _start(self) -> None:
        if not self._has_started:
            headers = [*_EVENTS] if self._session is None else [*_EVENTS, (_SESSION, self._session)]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            # Not before: the task may be cancelled while a slow client receives this.
            self._has_started = True

    async def _watch(self, left: Callable[[], object]) -> None:
        """Send keep-alive comments to the client and to proxies on the way, until the client disconnects."""
        clock = asyncio.get_running_loop().time
        if self._session is not None:
            async with self._writing:
                await self._start()
        while True:
            try:
                async with asyncio.timeout(self._sent_at + _PING_S - clock()):
                    while (await self._receive())["type"] != "http.disconnect":
                        pass
            except TimeoutError:
                if clock() < self._sent_at + _PING_S:
                    continue
                now = b"" if self._session is None else f" - {datetime.now(UTC)}".encode()
                await self._send_piece(b": ping%s\r\n\r\n" % now)
            else:
                left()
                return


class CallsOverLines(IncomingLines):
    """Received messages, except the usual calls, which are answered here.

    The SDK chooses the era by the first request, so it always gets that one.

    Args:
        descriptor: The descriptor to read from.
        outgoing: The stream for messages of the server.
        answerer: Answers the usual calls; None: the SDK answers all calls.
        received: Called with each message.
        ended: Awaited at the end of the messages, before the calls in flight are ended.
    """

    def __init__(
        self,
        descriptor: int,
        outgoing: OutgoingLines,
        answerer: Answerer | None,
        *,
        received: Callable[[JSONRPCMessage], None] = lambda _message: None,
        ended: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(descriptor, outgoing)
        self._outgoing = outgoing
        self._answerer = answerer
        self._received = received
        self._at_end = ended

    async def receive(self) -> sdk.SessionMessage | Unreadable:
        """Return the next message that is not answered here."""
        while True:
            try:
                item = await super().receive()
            except anyio.EndOfStream:
                if self._at_end is not None:
                    await self._at_end()
                await self._end_calls()
                raise
            if isinstance(item, Unreadable):
                return item
            self._received(item.message)
            if self._answerer is None or not self._takes(item.message, self._answerer):
                return item

    async def aclose(self) -> None:
        """Take no further line, and end the calls in flight."""
        await self._end_calls()
        await super().aclose()

    def _takes(self, message: JSONRPCMessage, answerer: Answerer) -> bool:
        """Start to answer a message if it is a usual call; return True if the SDK must not get it."""
        session = answerer.connected(None)
        if session is None or not session.is_open:
            return False
        if not isinstance(message, JSONRPCRequest):
            return session.receive(message)
        params, has_handshake = message.params or {}, session.has_handshake
        if not (
            message.method == "tools/call"
            and session.accepts(message.id)
            and _is_usual(params, has_handshake=has_handshake)
            and answerer.takes(params["name"])
            and not _is_traced()
        ):
            return False
        call = ToolCall(
            id=message.id,
            params=params,
            write=self._write,
            session=session,
            connection=session.connection if has_handshake else None,
        )
        session.begin(call, self._run(call, answerer))
        return True

    async def _run(self, call: ToolCall, answerer: Answerer) -> None:
        reply = await call.outcome(answerer)
        if reply is not None:
            await self._write(reply)
        elif call.cancelled is not _REQUEST_CANCELLED:
            with anyio.move_on_after(_LAST_WRITE_S):
                await self._write({"jsonrpc": "2.0", "id": call.id, "error": call.cancelled})

    async def _write(self, message: Mapping[str, Any]) -> None:
        # A disconnected client needs no message.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            answers = None if "method" in message else message["id"]
            await self._outgoing.send_line(_encoded(message), answers=answers)

    async def _end_calls(self) -> None:
        session = None if self._answerer is None else self._answerer.connected(None)
        if session is not None:
            await session.ended()


def _usual_headers(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers of a request that may be a usual call."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        # Different parsers read a repeated header differently.
        if name.startswith(b"mcp-param-") or (name in headers and name in _READ_ONCE):
            return None
        headers[name] = value
    version, kind = headers.get(_VERSION), headers.get(b"content-type", b"").split(b";")[0]
    if _SESSION in headers:
        # The earliest version with sessions has no version header, and its media types are in lower case.
        usual = (version is None or version in _HANDSHAKE) and kind.rstrip() == b"application/json"
    else:
        is_call = version == LATEST_MODERN_VERSION.encode() and headers.get(b"mcp-method") == b"tools/call"
        usual = is_call and kind.strip().lower() == b"application/json"
    accept = headers.get(b"accept", b"")
    # A longer one is not kept in the cache.
    return headers if usual and len(accept) < 1024 and _takes_both(accept) else None


@lru_cache(maxsize=64)
def _takes_both(accept: bytes) -> bool:
    kinds = {kind.split(b";")[0].strip().lower() for kind in accept.split(b",")}
    return {b"application/json", b"text/event-stream"} <= kinds


def _call_in(first: Message, headers: Mapping[bytes, bytes], live: LiveSession | None) -> ToolCall | None:
    """Return the call in a request; None if it is not a usual one, or too long."""
    body: bytes = first.get("body", b"")
    if first["type"] != "http.request" or first.get("more_body") or len(body) > _LONGEST_BYTES:
        return None
    try:
        # The parser that the SDK uses in each era.
        request = json.loads(body) if live is None else pydantic_core.from_json(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict) or request.keys() != _KEYS or request["jsonrpc"] != "2.0":
        return None
    number, params = request["id"], request["params"]
    if type(number) not in (int, str) or request["method"] != "tools/call":
        return None
    if not _is_usual(params, has_handshake=live is not None):
        return None
    if live is None:
        # A name that is not ASCII is encoded in the header, and the SDK decodes it.
        name, named = params["name"], headers.get(b"mcp-name")
        if named is None or name.startswith("=?base64?") or named.decode("latin-1") != name:
            return None
    elif not live.accepts(number):
        return None
    # Only the handshake era has sessions over HTTP.
    connection = None if live is None else live.connection
    return ToolCall(id=number, params=params, write=_discard, session=live, connection=connection)


def _is_usual(params: object, *, has_handshake: bool) -> bool:
    """Return whether the params of a `tools/call` hold exactly what is usual in its era."""
    if not (
        isinstance(params, dict)
        and params.keys() <= _PARAMS
        and isinstance(params.get("name"), str)
        and isinstance(params.get("arguments", {}), dict)
    ):
        return False
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        return False
    if has_handshake:
        # The handshake era has no envelope, and the SDK refuses one there.
        return mcp_types.PROTOCOL_VERSION_META_KEY not in meta
    is_whole = (
        meta.get(mcp_types.PROTOCOL_VERSION_META_KEY) == LATEST_MODERN_VERSION
        and mcp_types.CLIENT_CAPABILITIES_META_KEY in meta
    )
    # The SDK has to apply a log level.
    return is_whole and mcp_types.LOG_LEVEL_META_KEY not in meta


def _is_traced() -> bool:
    """Return whether this server is traced with OpenTelemetry, which is left to the SDK."""
    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


def _encoded(message: Mapping[str, Any], *, is_modern: bool = False) -> bytes:
    """Encode a message like the SDK, which has a separate encoder for HTTP in the modern era."""
    if is_modern:
        return _ENCODER.encode(message).encode()
    return pydantic_core.to_json(message, inf_nan_mode="null")


async def _discard(_message: Mapping[str, Any]) -> None:
    return None
