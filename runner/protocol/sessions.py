"""Sessions of clients, and the tool calls in flight in them that the SDK does not run.

A call that bypasses the SDK (`runner.protocol.direct`) runs in a task of its own. The client can cancel it,
answer its questions, and end it with the session.

Source: JSON-RPC 2.0; MCP specification 2025-11-25, "Cancellation" and "Lifecycle".
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.protocol.internals.answer import error_of
from runner.protocol.internals.connection import connection_of
from runner.protocol.internals.types import (
    REQUEST_CANCELLED,
    Connection,
    coerce_request_id,
    credential_of,
)

__all__ = ["QUESTION_IDS", "CallInFlight", "LiveSession", "LiveSessions", "Outlet"]

QUESTION_IDS = "toolcell-question-"
"""How the ids of our requests to clients begin; those of the SDK are numbers."""

_CANCELLED = "notifications/cancelled"
_LAST_WRITE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """The stream that all messages about one call are written to.

    Attributes:
        send: Writes a message.
        can_ask: Whether the client can be asked on it.
        has_own_response: Whether it is the response of this call alone, so that it needs an end.
        settled: Is called once no further message will be written.
    """

    send: Callable[[JSONRPCMessage], Awaitable[None]]
    can_ask: bool
    has_own_response: bool = False
    settled: Callable[[], None] = lambda: None


@dataclass(slots=True, kw_only=True, eq=False)
class CallInFlight:
    """One call while it runs."""

    request: JSONRPCRequest
    out: Outlet
    session: "LiveSession"
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_cancelled: bool = False
    is_over: bool = False

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification ahead of the answer; nothing after it."""
        if not self.is_over:
            await self._write(JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params)))

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the client a request and return its result.

        Raises:
            MCPError: It refuses, cannot be asked, or its session has ended.
        """
        if self.is_over or not self.out.can_ask:
            raise NoBackChannelError(method)
        number, question = self.session.new_question()
        try:
            await self._write(JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=dict(params)))
            return await question
        except asyncio.CancelledError:
            cancelled = {"requestId": number, "reason": "caller cancelled"}
            with anyio.move_on_after(_LAST_WRITE_S, shield=True):
                await self._write(JSONRPCNotification(jsonrpc="2.0", method=_CANCELLED, params=cancelled))
            raise
        finally:
            self.session.forget_question(number)

    async def run(self, serve: "Callable[[CallInFlight], Awaitable[dict[str, Any]]]") -> None:
        """Serve the call, and write its answer unless the client has cancelled it."""
        answer: JSONRPCResponse | JSONRPCError | None = None
        number, is_written = self.request.id, False
        try:
            with self.scope:
                try:
                    answer = JSONRPCResponse(jsonrpc="2.0", id=number, result=await serve(self))
                except Exception as error:  # noqa: BLE001 - an error of JSON-RPC, and a line in the log, as the SDK's
                    answer = JSONRPCError(jsonrpc="2.0", id=number, error=self.session.error_of(error))
                finally:
                    self.is_over = True
                    self.session.forget(self)
                if not self.is_cancelled:
                    # A write that is interrupted may have been delivered: rather none than two.
                    is_written = True
                    await self._write(answer)
            if is_written or (self.is_cancelled and not self.out.has_own_response):
                return
            # The response of a cancelled call has to end with something, as the SDK's does.
            unanswered = (
                mcp_types.ErrorData(code=REQUEST_CANCELLED, message="Request cancelled")
                if self.is_cancelled
                else mcp_types.ErrorData(code=mcp_types.CONNECTION_CLOSED, message="Connection closed")
            )
            with anyio.move_on_after(_LAST_WRITE_S, shield=True):
                await self._write(JSONRPCError(jsonrpc="2.0", id=number, error=unanswered))
        finally:
            self.out.settled()

    async def _write(self, message: JSONRPCMessage) -> None:
        try:
            await self.out.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # A client that has left needs no message.
            return


class LiveSession:
    """One session: the connection over stdio, or a session over HTTP.

    Attributes:
        connection: The SDK's. In the later era that of one request, of which the version holds for all.
        credential: What the client that opened it has shown, as the SDK compares it.
        seen_at: When the SDK last served a request in it, by the monotonic clock.
    """

    def __init__(self, connection: Connection, credential: object) -> None:
        self.connection = connection
        self.credential = credential
        self.seen_at = time.monotonic()
        self._is_open = True
        self._in_flight: dict[str | int, CallInFlight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)

    @property
    def has_handshake(self) -> bool:
        """True if the session is of the era in which clients shake hands."""
        return self.connection.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS

    @property
    def is_open(self) -> bool:
        """True if it has not ended."""
        return self._is_open

    @property
    def is_busy(self) -> bool:
        """True if a call is in flight in it that bypassed the SDK."""
        return bool(self._in_flight)

    @property
    def is_ready(self) -> bool:
        """True if it takes requests: its handshake is over, and it has not ended."""
        return self._is_open and self.connection.initialize_accepted

    def begin(
        self,
        request: JSONRPCRequest,
        serve: Callable[[CallInFlight], Awaitable[dict[str, Any]]],
        out: Outlet,
    ) -> bool:
        """Begin to serve a call in a task of its own; return False for an id that is in flight."""
        key = coerce_request_id(request.id)
        if key in self._in_flight or not self._is_open:
            return False
        call = self._in_flight[key] = CallInFlight(request=request, out=out, session=self)
        task = asyncio.get_running_loop().create_task(call.run(serve))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def forget(self, call: CallInFlight) -> None:
        """Take a call that has run out of those in flight."""
        self._in_flight.pop(coerce_request_id(call.request.id), None)

    def hear(self, message: object) -> bool:
        """Act on a message that is about a call or a question here; return True for the answer to one."""
        if isinstance(message, JSONRPCNotification):
            if message.method == _CANCELLED and isinstance(message.params, Mapping):
                number = message.params.get("requestId")
                call = (
                    self._in_flight.get(coerce_request_id(number)) if isinstance(number, int | str) else None
                )
                if call is not None:
                    call.is_cancelled = True
                    call.scope.cancel()
            return False
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or not isinstance(message.id, str):
            return False
        question = self._questions.get(message.id)
        if question is None or question.done():
            return message.id.startswith(QUESTION_IDS)
        if isinstance(message, JSONRPCResponse):
            question.set_result(message.result)
        else:
            error = message.error
            question.set_exception(MCPError(code=error.code, message=error.message, data=error.data))
        return True

    def new_question(self) -> tuple[str, asyncio.Future[dict[str, Any]]]:
        """Return the id of a new request to the client, and a future of its result."""
        number = f"{QUESTION_IDS}{next(self._numbers)}"
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        return number, question

    def forget_question(self, number: str) -> None:
        """Await an answer no longer."""
        self._questions.pop(number, None)

    def error_of(self, error: Exception) -> mcp_types.ErrorData:
        """Return an exception as the SDK's error in the era of the session."""
        return error_of(error, has_handshake=self.has_handshake)

    def close(self) -> None:
        """End the session: its calls are cancelled, and none begins."""
        self._is_open = False
        for call in [*self._in_flight.values()]:
            call.scope.cancel()

    async def ended(self) -> None:
        """End the session, and return once its calls have written their last message."""
        self.close()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*self._tasks, return_exceptions=True)


class LiveSessions:
    """The sessions of a server: one over stdio, and each of those over HTTP."""

    def __init__(self) -> None:
        self._known: dict[str | None, LiveSession] = {}

    def note(self, ctx: ServerRequestContext[Any, Any]) -> None:
        """Know the session of a request that the SDK serves, until it ends."""
        connection = connection_of(ctx)
        session = connection.session_id
        if session is None and ctx.request is not None:
            # The later era has no sessions over HTTP.
            return
        known = self._known.get(session)
        if (
            known is not None
            and known.is_open
            and (known.connection is connection or not known.has_handshake)
        ):
            known.seen_at = time.monotonic()
            return
        live = self._known[session] = LiveSession(
            connection, credential_of(None if ctx.request is None else ctx.request.scope)
        )
        if connection.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            # Before the handshake ends, too, the version is one of these.
            connection.exit_stack.callback(self._end, session, live)

    def of(self, session: str | None) -> LiveSession | None:
        """Return a session; the one over stdio is that of no id."""
        return self._known.get(session)

    def _end(self, session: str | None, live: LiveSession) -> None:
        live.close()
        if self._known.get(session) is live:
            del self._known[session]
