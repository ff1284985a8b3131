"""The client's half of a connection to a remote server.

The proxy forwards raw requests, with the capabilities of its own client.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from mcp import ClientSession
from mcp.client import sse, streamable_http
from mcp.client.session import DEFAULT_CLIENT_INFO
from mcp.client.sse import sse_client
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ClientCapabilities,
    ErrorData,
    InitializedNotification,
    InitializeRequestParams,
    InitializeResult,
    JSONRPCError,
    JSONRPCMessage,
    ListToolsResult,
    Notification,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic_core import PydanticCustomError, ValidationError

from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError
from runner.protocol.internals.results import mend_results
from runner.protocol.messages import Unreadable, read_message

__all__ = [
    "HTTP_ANSWER",
    "Disconnected",
    "HttpAnswer",
    "NoAnswer",
    "Peer",
    "RelayingSession",
    "UnreadableAnswer",
    "ask_remote",
    "learn_tools",
    "mark_sent",
    "mend_messages_over_http",
    "sse_client",
    "tell_remote",
]


class Disconnected(MCPError):
    """The end of the connection in place of an answer, as our own transport saw it."""


class UnreadableAnswer(MCPError):
    """A message in place of an answer that breaks the protocol; the text says how."""


class NoAnswer(MCPError):
    """A response over HTTP without a message, whose status is that of a failure."""


@dataclass(slots=True)
class HttpAnswer:
    """The last response over HTTP to a request of ours.

    Attributes:
        status: Its status; 0 where there was none.
        retry_after: Its header of that name, as it came.
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
                # The caller in this exchange is told by the transport, which knows errors of pydantic.
                raise _of_pydantic(error) from None
            return JSONRPCError(jsonrpc="2.0", id=error.id, error=error.error)
        mark_sent(message)
        return message


def mark_sent(message: JSONRPCMessage) -> None:
    """Mark an error of JSON-RPC as one that came from the server: the SDK makes errors of the same codes."""
    # With that code alone the SDK reads the data.
    if isinstance(message, JSONRPCError) and message.error.code != UNSUPPORTED_PROTOCOL_VERSION:
        failure = message.error
        message.error = ErrorData(code=failure.code, message=failure.message, data=_Sent(failure.data))


def _of_pydantic(error: Unreadable) -> ValidationError:
    problem = PydanticCustomError("unreadable", "{problem}", {"problem": str(error)})
    # Hidden: the input may be long, and nobody needs to read it.
    return ValidationError.from_exception_data("message", [{"type": problem, "input": None}], hide_input=True)


def mend_messages_over_http() -> None:
    """Parse messages of servers over HTTP as those over lines.

    Half of a surrogate pair spoils a string only, and what cannot be read ends the request in words. The
    length of an event is the HTTP client's to bound; over the older transport the SDK has no option for it.
    """
    for module in (sse, streamable_http):
        vars(module)["jsonrpc_message_adapter"] = _Messages
    vars(sse)["sse_within_origin"] = partial(vars(sse)["sse_within_origin"], max_event_size=None)


class Peer:
    """The owner of a session: it answers for the client, and receives what the server sends."""

    __slots__ = ()

    def capabilities(self, version: str) -> ClientCapabilities:
        """Return what to announce in a version of the protocol."""
        return ClientCapabilities()

    def introduced(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the server's result of `initialize`, repaired: the SDK refuses it for one faulty member."""
        return result

    def bounded(self, messages: Any) -> Any:
        """Return the stream of the server's messages within bounds.

        If that has a `problem`, it is the reason why the stream was ended.
        """
        return messages

    async def on_request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Answer a request of the server, or raise `MCPError`."""
        raise NotImplementedError

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Receive a notification of the server."""


class RelayingSession(ClientSession):
    """A session with the capabilities and handlers of its peer.

    The SDK's own derives capabilities from its callbacks, and knows no requests but those of its tables.
    """

    def __init__(self, peer: Peer, read_stream: Any = None, write_stream: Any = None, **more: Any) -> None:
        mend_results()
        self._peer = peer
        # A session over a dispatcher has no streams.
        self._messages = None if read_stream is None else peer.bounded(read_stream)
        super().__init__(self._messages, write_stream, **more)
        self._about = more.get("client_info") or DEFAULT_CLIENT_INFO

    async def initialize(self) -> InitializeResult:
        """Begin the session with the capabilities of the peer."""
        if self.initialize_result is not None:
            return self.initialize_result
        version = LATEST_HANDSHAKE_VERSION
        about = InitializeRequestParams(
            protocol_version=version, capabilities=self._peer.capabilities(version), client_info=self._about
        )
        params, options = about.model_dump(by_alias=True, mode="json", exclude_none=True), CallOptions()
        self._stamp({"method": "initialize", "params": params}, options)
        raw = await self._dispatcher.send_raw_request("initialize", params, options)
        result = InitializeResult.model_validate(self._peer.introduced(raw), by_name=False)
        if result.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise RuntimeError(f"it speaks version {result.protocol_version!r} of the protocol only")
        self.adopt(result)
        await self.send_notification(InitializedNotification())
        return result

    @property
    def problem(self) -> str | None:
        """Reason why the stream of messages was ended from here, if it was."""
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
    """Send a request as it is and return the server's own result, unchecked.

    `ClientSession.send_request` raises for a result that does not conform to the protocol, and for tasks of
    2025-11-25; it drops fields that the negotiated version lacks. A proxy passes them on.

    Args:
        session: The connection.
        method: The method.
        params: The params.
        timeout_s: How long the answer may take.
        progress: Hears of progress.
        http: Takes the status of the response, if the connection is over HTTP.

    Raises:
        Disconnected: The connection ended before the answer.
        UnreadableAnswer: The answer breaks the protocol.
        NoAnswer: The response over HTTP is not an answer.
        MCPError: The server answered with an error.
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
        if error.code == CONNECTION_CLOSED:
            problem = getattr(session, "problem", None)
            message = error.message if problem is None else f"{error.message}: {problem}"
            raise Disconnected(error.code, message) from error
        if error.code in (PARSE_ERROR, INVALID_REQUEST) and http.status < HTTPStatus.BAD_REQUEST:
            raise UnreadableAnswer(error.code, error.message) from error
        if http.status >= HTTPStatus.BAD_REQUEST:
            raise NoAnswer(error.code, error.message) from error
        raise
    finally:
        HTTP_ANSWER.reset(before)


async def tell_remote(session: ClientSession, method: str, params: Mapping[str, Any] | None) -> None:
    """Send a notification as it is."""
    message: Any = _Notification(method=method, params=None if params is None else dict(params))
    await session.send_notification(message)


def learn_tools(session: ClientSession, page: Mapping[str, Any]) -> None:
    """Let a session learn which arguments of the tools in a `tools/list` result go into headers too."""
    session._absorb_tool_listing(ListToolsResult.model_validate(page), complete=False)
