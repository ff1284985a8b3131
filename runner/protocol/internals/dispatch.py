"""Requests put among those that the SDK has under way on a connection, without the streams they come by.

The SDK's dispatcher knows of a connection which requests are under way, so that a client can cancel one, and
what the client was asked, so that its answers find their way. A request that is begun here stands in the same
tables, runs in the same task group, and is served by the dispatcher's own code, whatever becomes of it. Only
how it came is ours, and, where a request has a response of its own, where to what is said of it goes.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from mcp.server.connection import Connection, NotifyOnlyOutbound
from mcp.server.context import ServerRequestContext
from mcp.server.runner import modern_error_data
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.dispatcher import DispatchContext, OnRequest, coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import (
    JSONRPCDispatcher,
    _InFlight,
    _JSONRPCDispatchContext,
    progress_token_from_params,
)
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

__all__ = ["Own", "SessionConnection", "SessionConnections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The response that a request has for itself, as over HTTP.

    Attributes:
        stream: Takes all that is said of the request.
        can_ask: Whether it takes questions to the client.
        settled: Is called once nothing more will be said.
    """

    stream: WriteStream[SessionMessage]
    can_ask: bool
    settled: Callable[[], None]


class SessionConnections:
    """The connections that are served by a dispatcher: one over stdio, one for each session over HTTP."""

    def __init__(self) -> None:
        self._known: dict[str | None, SessionConnection] = {}

    def note(self, ctx: ServerRequestContext[Any, Any]) -> None:
        """Know the connection of a request from now on, until it ends."""
        connection = ctx.session._connection
        outbound = connection.outbound
        if isinstance(outbound, NotifyOnlyOutbound):
            # The later era makes a connection for each request, of one dispatcher.
            outbound = outbound._outbound
        session = connection.session_id
        known = self._known.get(session)
        if not isinstance(outbound, JSONRPCDispatcher) or (known and known.is_of(outbound)):
            return
        self._known[session] = SessionConnection(connection, outbound)
        if session is not None:
            connection.exit_stack.callback(self._known.pop, session, None)

    def of(self, session: str | None) -> "SessionConnection | None":
        """Return a session's connection; the one over stdio is that of no session."""
        return self._known.get(session)


class SessionConnection:
    """A connection whose requests can be begun.

    Attributes:
        connection: The SDK's. In the later era that of one request, of which the version holds for all.
    """

    def __init__(self, connection: Connection, dispatcher: JSONRPCDispatcher[Any]) -> None:
        self.connection = connection
        self._dispatcher = dispatcher

    @property
    def has_handshake(self) -> bool:
        """Whether the connection is of the era in which clients shake hands."""
        return self.connection.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS

    @property
    def is_ready(self) -> bool:
        """Whether the connection takes requests: its handshake is over, and it has not ended."""
        tasks = self._dispatcher._tg
        is_open = self._dispatcher._running and tasks is not None and not tasks.cancel_scope.cancel_called
        return is_open and self.connection.initialize_accepted

    def is_of(self, dispatcher: JSONRPCDispatcher[Any]) -> bool:
        """Say whether a dispatcher is the one that serves this connection."""
        return dispatcher is self._dispatcher

    def begin(self, request: JSONRPCRequest, serve: OnRequest, own: Own | None = None) -> bool:
        """Begin to serve a request, in a task of the connection; say whether that could be done.

        The SDK has words for two of one id at a time, and serves the second.

        Args:
            request: The request.
            serve: Returns its result, or raises what becomes an error.
            own: Its own response, if it has one; else all is said on the connection.
        """
        session = self._dispatcher
        key, tasks = coerce_request_id(request.id), session._tg
        if key in session._in_flight or tasks is None:
            return False
        metadata = None if own is None else _metadata(request, own)
        dispatcher = session if own is None else _Dispatcher(session, own.stream)
        told: _JSONRPCDispatchContext[TransportContext] = _JSONRPCDispatchContext(
            transport=session._transport_builder(metadata),
            _dispatcher=dispatcher,
            _request_id=request.id,
            message_metadata=metadata,
            _progress_token=progress_token_from_params(request.params),
        )
        scope = anyio.CancelScope()
        session._in_flight[key] = _InFlight(scope=scope, dctx=told)
        within = serve if self.has_handshake else _in_words_of_its_era(serve)

        async def handled() -> None:
            try:
                await dispatcher._handle_request(request, told, scope, within)
            finally:
                if own is not None:
                    own.settled()

        tasks.start_soon(handled)
        return True


class _Dispatcher(JSONRPCDispatcher[TransportContext]):
    """A session's dispatcher for one request, which says all on the request's own stream."""

    def __init__(
        self, session: JSONRPCDispatcher[TransportContext], stream: WriteStream[SessionMessage]
    ) -> None:
        super().__init__(session._read_stream, stream)
        self._session = session
        self._pending = session._pending
        self._in_flight = session._in_flight
        self._running = True

    def _allocate_id(self) -> int:
        return self._session._allocate_id()


def _metadata(request: JSONRPCRequest, own: Own) -> ServerMessageMetadata:
    async def unanswered() -> None:
        # So does the SDK's transport: a response of this era has no other end.
        error = ErrorData(code=REQUEST_CANCELLED, message="Request cancelled")
        with contextlib.suppress(anyio.ClosedResourceError):
            await own.stream.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request.id, error=error)))

    return ServerMessageMetadata(on_request_unanswered=unanswered, can_send_request=own.can_ask)


def _in_words_of_its_era(serve: OnRequest) -> OnRequest:
    async def within(
        told: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        try:
            return await serve(told, method, params)
        except (MCPError, ValidationError):
            raise
        except Exception as error:
            said = modern_error_data(error)
            raise MCPError(code=said.code, message=said.message, data=said.data) from error

    return within
