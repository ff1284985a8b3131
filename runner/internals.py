"""The only module that touches private names of fastmcp and mcp; their minor versions are pinned.

Four uses, each with its reason:

- A worker serves one raw request with the SDK's own single-exchange driver, so that claims,
  headers, session id, state and elicitation reach the tool exactly as in plain FastMCP.
- The host relays what a worker answers, innermost in the SDK's middleware, so that authentication
  and the sealing of request state stay where the SDK puts them.
- Warming up a zygote builds what the first call would build.
- The proxy speaks to remote servers as its client does: raw requests, the client's own capabilities.

`tests/contract_fastmcp/` holds the tests that fail when a name here changes its meaning.
"""

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, get_args

import anyio
from fastmcp import FastMCP
from fastmcp.server.auth import AccessToken
from fastmcp.server.context import reset_transport, set_transport
from fastmcp.server.dependencies import without_injected_parameters
from fastmcp.server.providers.base import Provider
from fastmcp.server.providers.wrapped_provider import _WrappedProvider
from fastmcp.server.server import StateValue, default_lifespan
from fastmcp.tools.function_tool import FunctionTool, _wrap_body_errors
from fastmcp.utilities.tasks import TaskConfig
from fastmcp.utilities.types import get_cached_typeadapter
from mcp import ClientSession
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import ServerRunner, _extract_meta, modern_error_data, serve_one
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    ClientCapabilities,
    ListToolsResult,
    LoggingLevel,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.requests import Request

from runner.request import RequestFacts, WireError

__all__ = [
    "Exchange",
    "ask_remote",
    "capabilities",
    "connection_levels",
    "connection_of",
    "direct_facts",
    "error_reply",
    "facts_of",
    "inner_provider",
    "is_ready",
    "learn_tools",
    "lifespan",
    "message_levels",
    "notify_client",
    "relay_innermost",
    "relaying_session",
    "request_client",
    "sealed_question",
    "serve_raw",
    "serve_streams",
    "serve_subscriptions",
    "session_of",
    "single_call_server",
    "tell_remote",
    "use_input_schemas",
    "warm_type_adapters",
]

_LEVELS: tuple[str, ...] = get_args(LoggingLevel)
_STATE_COLLECTION = "fastmcp_state"

Relay = Callable[[ServerRequestContext[Any, Any], CallNext], Coroutine[Any, Any, HandlerResult]]


# ---------------------------------------------------------------- worker and zygote


def inner_provider(provider: Provider) -> Provider:
    """Return the provider inside its namespace and transform wrappers."""
    while isinstance(provider, _WrappedProvider):
        provider = provider._inner
    return provider


class _TypedState:
    """What FastMCP reads session state through, in place of its `PydanticAdapter`.

    That one comes with a library whose import is a fifth of the time in which `runner call` starts.
    """

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    async def get(self, key: str) -> StateValue | None:
        value = await self._storage.get(key, collection=_STATE_COLLECTION)
        return None if value is None else StateValue.model_validate(value)

    async def put(self, key: str, value: StateValue, *, ttl: float | None = None) -> None:
        await self._storage.put(key, value.model_dump(mode="json"), collection=_STATE_COLLECTION, ttl=ttl)

    async def delete(self, key: str) -> bool:
        return bool(await self._storage.delete(key, collection=_STATE_COLLECTION))


async def single_call_server(server: FastMCP, state_store: Any) -> None:
    """Change a loaded server so that a worker can serve one request with it.

    The host seals request state, so the server must not; background tasks would outlive the worker,
    so every tool runs in the foreground; session state lives in the host.
    """
    low = server._mcp_server
    low.middleware[:] = [item for item in low.middleware if not isinstance(item, RequestStateBoundary)]
    for tool in await server._local_provider.list_tools():
        tool.task_config = TaskConfig(mode="forbidden")
    server._extensions.clear()
    server._state_storage = state_store
    vars(server)["_FastMCP__state_store"] = _TypedState(state_store)
    if server.providers != [server._local_provider]:
        # A mounted server makes FastMCP's own adapter in its first call, which should not pay the import.
        import_module("key_value.aio.adapters.pydantic")
        import_module("key_value.aio.stores.memory")


async def warm_type_adapters(server: FastMCP) -> None:
    """Build the argument validators that the first call of each tool would build."""
    for tool in await server._local_provider.list_tools():
        if isinstance(tool, FunctionTool):
            body = _wrap_body_errors(tool.fn, materialize_generators=True)
            outer = without_injected_parameters(body, run_in_thread=tool.run_in_thread)
            get_cached_typeadapter(_wrap_body_errors(outer))


@asynccontextmanager
async def lifespan(server: FastMCP) -> AsyncIterator[Any]:
    """Enter the server's own lifespan; yields the state its requests need.

    Where the author gave none and mounts nothing there is nothing to enter, and entering nothing
    would cost each worker 3 ms.
    """
    if server._lifespan is default_lifespan and server.providers == [server._local_provider]:
        yield {}
        return
    low = server._mcp_server
    async with server._lifespan_manager(), low.lifespan(low) as state:
        yield state


def capabilities(server: FastMCP) -> dict[str, Any]:
    """Return the capabilities that the server announces."""
    low = server._mcp_server
    value = low.get_capabilities(low.notification_options, server.experimental_capabilities or None)
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


@dataclass
class Exchange:
    """The SDK's dispatch context for one relayed request."""

    request_id: str | int | None
    can_send_request: bool
    transport: TransportContext
    message_metadata: ServerMessageMetadata | None
    on_notify: Callable[[str, Mapping[str, Any] | None], Awaitable[None]]
    on_request: Callable[[str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]]
    cancel_requested: anyio.Event = field(default_factory=anyio.Event)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Pass on a notification."""
        await self.on_notify(method, params)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Pass on a request and return its result."""
        if not self.can_send_request:
            raise NoBackChannelError(method)
        return await self.on_request(method, params)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Pass on a report of progress."""
        params = {"progress": progress, "total": total, "message": message}
        await self.on_notify("notifications/progress", {k: v for k, v in params.items() if v is not None})


async def serve_raw(
    server: FastMCP,
    method: str,
    params: Mapping[str, Any] | None,
    facts: RequestFacts,
    state: Any,
    *,
    on_notify: Callable[[str, Mapping[str, Any] | None], Awaitable[None]],
    on_request: Callable[[str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Serve one raw request with the server's own handlers; return the wire result.

    Raises:
        WireError: The server answered with a JSON-RPC error.
    """
    set_transport(facts.transport)  # type: ignore[arg-type]
    user = AuthenticatedUser(AccessToken(**facts.token)) if facts.token else None
    if user is not None:
        auth_context_var.set(user)
    exchange = Exchange(
        request_id=facts.request_id,
        can_send_request=facts.can_send_request,
        transport=TransportContext(kind=facts.transport, can_send_request=facts.can_send_request),
        message_metadata=_http_request(facts, user),
        on_notify=on_notify,
        on_request=on_request,
    )
    connection = Connection.from_envelope(
        facts.protocol, facts.client_info, facts.client_capabilities, outbound=exchange
    )
    connection.session_id = facts.session_id
    connection.state["_fastmcp_state_prefix"] = facts.session_id
    try:
        return await serve_one(
            server._mcp_server, exchange, method, params, connection=connection, lifespan_state=state
        )
    except Exception as error:
        raise WireError(modern_error_data(error).model_dump(by_alias=True, exclude_none=True)) from error


def _http_request(facts: RequestFacts, user: AuthenticatedUser | None) -> ServerMessageMetadata | None:
    if facts.headers is None:
        return None
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in facts.headers],
    }
    if user is not None:
        scope["user"] = user
    return ServerMessageMetadata(request_context=Request(scope))


# ---------------------------------------------------------------- host


async def serve_streams(
    app: FastMCP, incoming: ReadStream[SessionMessage | Exception], outgoing: WriteStream[SessionMessage]
) -> None:
    """Serve one client over a pair of streams, as `FastMCP.run_stdio_async` does over its own pair."""
    token = set_transport("stdio")
    try:
        async with app._lifespan_manager():
            low = app._mcp_server
            await low.run(incoming, outgoing, low.create_initialization_options())
    finally:
        reset_transport(token)


def relay_innermost(app: FastMCP, relay: Relay) -> None:
    """Let `relay` answer requests, inside authentication and the sealing of request state."""
    middleware: list[Any] = app._mcp_server.middleware
    middleware.append(relay)


def use_input_schemas(app: FastMCP, schemas: Callable[[str], Mapping[str, Any] | None]) -> None:
    """Tell the HTTP transport the input schema of a tool, which it would else list all tools for."""
    app._mcp_server.get_tool_input_schema = schemas


def serve_subscriptions(
    app: FastMCP,
    *,
    subscribe: Callable[[ServerRequestContext[Any, Any], SubscribeRequestParams], Awaitable[Any]],
    unsubscribe: Callable[[ServerRequestContext[Any, Any], UnsubscribeRequestParams], Awaitable[Any]],
    listen: Callable[[ServerRequestContext[Any, Any], SubscriptionsListenRequestParams], Awaitable[Any]],
) -> None:
    """Answer subscriptions, which FastMCP does not, in both eras; the capability follows by itself."""
    low = app._mcp_server
    low.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
    low.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, listen)


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """Return the connection of a request, which outlives it in the handshake era."""
    return ctx.session._connection


def facts_of(ctx: ServerRequestContext[Any, Any], token: AccessToken | None) -> RequestFacts:
    """Gather what a worker needs to know of a request that reached the host."""
    session = ctx.session
    info = session.client_params.client_info if session.client_params else None
    able = session.client_capabilities
    return RequestFacts(
        request_id=ctx.request_id,
        protocol=ctx.protocol_version,
        session_id=session_of(ctx),
        transport="streamable-http" if ctx.request is not None else "stdio",
        client_info=info.model_dump(by_alias=True, mode="json", exclude_none=True) if info else None,
        client_capabilities=able.model_dump(by_alias=True, mode="json", exclude_none=True) if able else None,
        token=token.model_dump(mode="json") if token else None,
        headers=_headers(ctx.request),
        can_send_request=session.can_send_request,
    )


def direct_facts(
    request: Request | None, request_id: str | int, params: Mapping[str, Any], token: AccessToken | None
) -> RequestFacts:
    """Gather the same of a request of the modern era that the SDK has not looked at."""
    meta = params["_meta"]
    info, able = _identity(json.dumps([meta.get(CLIENT_INFO_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]]))
    return RequestFacts(
        request_id=request_id,
        protocol=meta[PROTOCOL_VERSION_META_KEY],
        session_id=str(uuid.uuid4()),
        transport="streamable-http" if request is not None else "stdio",
        client_info=info,
        client_capabilities=able,
        token=token.model_dump(mode="json") if token else None,
        headers=_headers(request),
    )


@lru_cache(maxsize=64)
def _identity(envelope: str) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return what a client says of itself as the SDK understands it; a client says the same each time."""
    connection = Connection.from_envelope(LATEST_MODERN_VERSION, *json.loads(envelope))
    info = connection.client_params.client_info if connection.client_params else None
    able = connection.client_capabilities
    return (
        info.model_dump(by_alias=True, mode="json", exclude_none=True) if info else None,
        able.model_dump(by_alias=True, mode="json", exclude_none=True) if able else None,
    )


def sealed_question(
    app: FastMCP,
    result: dict[str, Any],
    *,
    request: Request | None,
    facts: RequestFacts,
    params: Mapping[str, Any],
) -> HandlerResult:
    """Return an `input_required` result whose state is sealed, as the SDK does to what passes through it."""
    low = app._mcp_server
    seals = [item for item in low.middleware if isinstance(item, RequestStateBoundary)]
    exchange = Exchange(
        request_id=facts.request_id,
        can_send_request=False,
        transport=TransportContext(kind=facts.transport, can_send_request=False),
        message_metadata=None if request is None else ServerMessageMetadata(request_context=request),
        on_notify=_tell_nobody,
        on_request=_ask_nobody,
    )
    connection = Connection.from_envelope(facts.protocol, facts.client_info, facts.client_capabilities)
    runner = ServerRunner(low, connection, None)
    ctx = runner._make_context(exchange, "tools/call", params, _extract_meta(params), facts.protocol)
    answer: HandlerResult = result
    for seal in reversed(seals):
        answer = seal._seal_result(ctx, answer, None)
    return answer


async def _tell_nobody(_method: str, _params: Mapping[str, Any] | None) -> None:
    return None


async def _ask_nobody(method: str, _params: Mapping[str, Any] | None) -> dict[str, Any]:
    raise NoBackChannelError(method)


def error_reply(request_id: str | int, error: Exception) -> tuple[dict[str, Any], int]:
    """Return the JSON-RPC error that an exception becomes in the modern era, and its HTTP status."""
    told = modern_error_data(error)
    body = told.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"jsonrpc": "2.0", "id": request_id, "error": body}, ERROR_CODE_HTTP_STATUS.get(told.code, 200)


def _headers(request: Request | None) -> list[tuple[str, str]] | None:
    """Return a request's headers as a tool may see them: without the cookie, which is a browser's key."""
    if request is None:
        return None
    return [(name, value) for name, value in request.headers.items() if name.lower() != "cookie"]


def session_of(ctx: ServerRequestContext[Any, Any]) -> str:
    """Follow `fastmcp.Context.session_id`, which needs a running FastMCP context."""
    connection = ctx.session._connection
    known = connection.state.get("_fastmcp_state_prefix") or connection.session_id
    if known is None and ctx.request is not None:
        known = ctx.request.headers.get("mcp-session-id")
    known = str(known or uuid.uuid4())
    connection.state["_fastmcp_state_prefix"] = known
    return known


def is_ready(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Say whether the connection has finished its handshake, where its era has one."""
    return bool(ctx.session._connection.initialize_accepted)


def message_levels(app: FastMCP, ctx: ServerRequestContext[Any, Any]) -> frozenset[str]:
    """Return the levels of log messages that the client wants to get, in its era's way of asking."""
    allowed = allowed_log_levels(ctx.protocol_version, ctx.meta)
    return _above_least(app, ctx.session._connection, allowed)


def connection_levels(app: FastMCP, connection: Connection) -> frozenset[str]:
    """Return the levels of log messages that a client wants to get outside of any request."""
    return _above_least(app, connection, allowed_log_levels(connection.protocol_version, None))


def _above_least(app: FastMCP, connection: Connection, allowed: Collection[str]) -> frozenset[str]:
    session = connection.session_id
    least = app._client_log_levels.get("__no_session__" if session is None else session)
    if least is None:
        return frozenset(allowed)
    return frozenset(level for level in allowed if _LEVELS.index(level) >= _LEVELS.index(least))


async def notify_client(
    ctx: ServerRequestContext[Any, Any], method: str, params: Mapping[str, Any] | None
) -> None:
    """Send a notification on the stream of this request."""
    await ctx.session._request_outbound.notify(method, params)


async def request_client(
    ctx: ServerRequestContext[Any, Any], method: str, params: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Ask the client something on the stream of this request."""
    return await ctx.session._request_outbound.send_raw_request(method, params)


# ---------------------------------------------------------------- proxy


def relaying_session(
    *,
    capabilities: Callable[[str], ClientCapabilities],
    on_request: Callable[[str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]],
    on_notify: Callable[[str, Mapping[str, Any] | None], Awaitable[None]],
) -> type[ClientSession]:
    """Return a kind of session that leaves it to others what it can do and what it answers.

    The SDK's own derives capabilities from its callbacks, and knows no requests but those of its tables.

    Args:
        capabilities: Returns what to announce, by protocol version.
        on_request: Answers a request of the server, or raises `MCPError`.
        on_notify: Hears a notification of the server.
    """

    class _Relaying(ClientSession):
        def _build_capabilities(self, version: str) -> ClientCapabilities:
            return capabilities(version)

        async def _on_request(
            self, dctx: object, method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            return await on_request(method, params)

        async def _on_notify(self, dctx: object, method: str, params: Mapping[str, Any] | None) -> None:
            await on_notify(method, params)

    return _Relaying


async def ask_remote(
    session: ClientSession,
    method: str,
    params: dict[str, Any],
    *,
    timeout_s: float | None,
    progress: ProgressFnT | None,
) -> dict[str, Any]:
    """Send a request as it is and return the server's own result; `params` gets what the protocol adds."""
    options: CallOptions = {}
    session._stamp({"method": method, "params": params}, options)
    if timeout_s is not None:
        options["timeout"] = timeout_s
    if progress is not None:
        options["on_progress"] = progress
    return await session._dispatcher.send_raw_request(method, params, options)


async def tell_remote(session: ClientSession, method: str, params: Mapping[str, Any] | None) -> None:
    """Send a notification as it is."""
    await session._dispatcher.notify(method, params)


def learn_tools(session: ClientSession, page: Mapping[str, Any]) -> None:
    """Let a session learn which arguments of the tools in a `tools/list` result go into headers too."""
    session._absorb_tool_listing(ListToolsResult.model_validate(page), complete=False)
