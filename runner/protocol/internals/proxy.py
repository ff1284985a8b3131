"""The client's half of a connection to a remote server.

The proxy forwards raw requests, with the capabilities of its own client.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcp import ClientSession
from mcp.client import sse, streamable_http
from mcp.client.sse import sse_client
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ClientCapabilities,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    ListToolsResult,
    Notification,
)
from pydantic_core import PydanticCustomError, ValidationError

from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError
from runner.formats.json_walks import least_chars
from runner.protocol.internals.results import mend_results
from runner.protocol.messages import Unreadable, read_message

__all__ = [
    "HTTP_ANSWER",
    "HttpAnswer",
    "NoAnswer",
    "Peer",
    "RelayingSession",
    "ask_remote",
    "learn_tools",
    "mark_sent",
    "mend_messages_over_http",
    "sse_client",
    "tell_remote",
]


_INTRODUCTIONS = frozenset({"initialize", "server/discover"})
_MOST_CHARS = 256 * 1024


class NoAnswer(MCPError):
    """An error of the SDK in place of an answer: the server sent none, or none that can be read."""


@dataclass(slots=True)
class HttpAnswer:
    """The last response over HTTP to a request of ours.

    Attributes:
        status: Its status; 0 where there was none.
        retry_after: Its `Retry-After` header, unparsed.
        in_session: Whether the request named a session.
    """

    status: int = 0
    retry_after: str = ""
    in_session: bool = False


HTTP_ANSWER: ContextVar[HttpAnswer | None] = ContextVar("http_answer", default=None)
"""Response recorded by the HTTP client. The SDK sends each message in the context of its sender."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The `data` of an error that came from the server: the SDK makes errors of the same codes itself."""

    data: Any


class _Messages:
    """Reader of messages for the SDK's HTTP transports, in place of pydantic alone."""

    @staticmethod
    def validate_json(data: str | bytes, *, by_name: bool) -> JSONRPCMessage:
        try:
            message = read_message(data)
        except Unreadable as error:
            if error.id is None or error.is_request:
                # The transport reports errors of pydantic to the caller in this exchange.
                raise _of_pydantic(error) from None
            return JSONRPCError(jsonrpc="2.0", id=error.id, error=error.error)
        mark_sent(message)
        return message


def mark_sent(message: JSONRPCMessage) -> None:
    """Mark an error of JSON-RPC as one that came from the server: the SDK makes errors of the same codes."""
    # The SDK itself reads the data of this code, and of no other.
    if isinstance(message, JSONRPCError) and message.error.code != UNSUPPORTED_PROTOCOL_VERSION:
        failure = message.error
        message.error = ErrorData(code=failure.code, message=failure.message, data=_Sent(failure.data))


def _of_pydantic(error: Unreadable) -> ValidationError:
    problem = PydanticCustomError("unreadable", "{problem}", {"problem": str(error)})
    # Hidden: the input may be long, and nobody needs to read it.
    return ValidationError.from_exception_data("message", [{"type": problem, "input": None}], hide_input=True)


def mend_messages_over_http() -> None:
    """Parse messages of servers over HTTP like those over stdio.

    A lone surrogate damages only its string, and an unreadable answer ends its request with a reason. The
    HTTP client limits the length of an event; the SDK's older transport has no option for it.
    """
    for module in (sse, streamable_http):
        vars(module)["jsonrpc_message_adapter"] = _Messages
    vars(sse)["sse_within_origin"] = partial(vars(sse)["sse_within_origin"], max_event_size=None)


class Peer:
    """The owner of a session: it answers for the client, and receives what the server sends."""

    __slots__ = ()

    def capabilities(self, version: str) -> ClientCapabilities:
        """Return the capabilities to announce in a version of the protocol."""
        return ClientCapabilities()

    def opened(self, messages: Any) -> None:
        """Receive the stream of the server's messages, before anything is read from it.

        If it has a `problem`, that is the reason why this side ended the stream.
        """

    async def on_request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Answer a request of the server, or raise `MCPError`."""
        raise NotImplementedError

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Receive a notification of the server."""


class RelayingSession(ClientSession):
    """A session with the capabilities and handlers of its peer.

    The SDK's session derives capabilities from its callbacks, and accepts only requests listed in its tables.
    """

    def __init__(self, peer: Peer, read_stream: Any = None, write_stream: Any = None, **more: Any) -> None:
        mend_results()
        super().__init__(read_stream, write_stream, **more)
        peer.opened(read_stream)
        self._peer, self._messages = peer, read_stream
        dispatcher: Any = self._dispatcher
        send = dispatcher.send_raw_request

        async def send_bounded(method: str, *params: Any, **options: Any) -> dict[str, Any]:
            result: dict[str, Any] = await send(method, *params, **options)
            if method in _INTRODUCTIONS and least_chars(result, _MOST_CHARS) > _MOST_CHARS:
                # Pydantic collects every fault that it finds.
                raise ValueError(f"its answer to {method} has more than {_MOST_CHARS} characters")
            return result

        dispatcher.send_raw_request = send_bounded

    @property
    def problem(self) -> str | None:
        """Reason why this side ended the stream of messages; None if it did not."""
        return getattr(self._messages, "problem", None)

    def _build_capabilities(self, version: str) -> ClientCapabilities:
        return self._peer.capabilities(version)

    async def _on_request(
        self, dctx: object, method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        try:
            return await self._peer.on_request(method, params)
        except MCPError:
            raise
        except Exception as error:
            # The SDK would answer with the text of the exception.
            failure = error if isinstance(error, CallError) else unexpected(error)
            raise MCPError(code=INTERNAL_ERROR, message=failure.message) from error

    async def _on_notify(self, dctx: object, method: str, params: Mapping[str, Any] | None) -> None:
        await self._peer.on_notification(method, params)


class _Notification(Notification[dict[str, Any] | None, str]):
    """A notification of any method."""


async def ask_remote(
    session: ClientSession,
    method: str,
    params: dict[str, Any],
    *,
    timeout_s: float | None,
    progress: ProgressFnT | None,
    http: HttpAnswer,
) -> dict[str, Any]:
    """Send a request unchanged and return the server's own result, unchecked.

    `ClientSession.send_request` raises for a result that does not conform to the protocol, and for tasks of
    2025-11-25; it drops fields that the negotiated version lacks. A proxy forwards them all.

    Args:
        session: The connection.
        method: The method.
        params: The params.
        timeout_s: How long the answer may take.
        progress: Receives progress notifications.
        http: Receives the status of the response, if the connection is over HTTP.

    Raises:
        NoAnswer: The server did not answer, or its answer violates the protocol.
        MCPError: It answered with an error.
    """
    options: CallOptions = {}
    session._stamp({"method": method, "params": params}, options)
    if timeout_s is not None:
        options["timeout"] = timeout_s
    if progress is not None:
        options["on_progress"] = progress
    before = HTTP_ANSWER.set(http)
    try:
        return await session._dispatcher.send_raw_request(method, params, options)
    except MCPError as error:
        data = error.error.data
        if isinstance(data, _Sent):
            raise MCPError(code=error.code, message=error.message, data=data.data) from None
        # If this side ended the connection, the reason is known.
        problem = session.problem if isinstance(session, RelayingSession) else None
        is_ended = error.code == CONNECTION_CLOSED and problem is not None
        raise NoAnswer(
            error.code, f"{error.message}: {problem}" if is_ended else error.message, data
        ) from error
    finally:
        HTTP_ANSWER.reset(before)


async def tell_remote(session: ClientSession, method: str, params: Mapping[str, Any] | None) -> None:
    """Send a notification unchanged."""
    message: Any = _Notification(method=method, params=None if params is None else dict(params))
    await session.send_notification(message)


def learn_tools(session: ClientSession, page: Mapping[str, Any]) -> None:
    """Register with a session the tool arguments in a `tools/list` result that go into headers too."""
    session._absorb_tool_listing(ListToolsResult.model_validate(page), complete=False)
