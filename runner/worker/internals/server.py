"""Server that answers one request in a worker, and its preparation in the zygote.

The SDK's own single-exchange driver serves it, so that claims, headers, session id, state and elicitation
reach the tool exactly as in plain FastMCP. Warming up builds the objects that the first call would build.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any

import mcp_types
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError, ValidationError
from fastmcp.server.auth import AccessToken
from fastmcp.server.context import Context, set_transport
from fastmcp.server.dependencies import without_injected_parameters
from fastmcp.server.providers import FastMCPProvider, LocalProvider
from fastmcp.server.providers.addressing import parse_hashed_backend_name
from fastmcp.server.providers.base import Provider
from fastmcp.server.server import StateValue, default_lifespan
from fastmcp.tools import FunctionTool, Tool, ToolResult
from fastmcp.utilities.tasks import TaskConfig
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import ServerRunner, aclose_shielded, modern_error_data
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError
from starlette.requests import Request
from starlette.routing import BaseRoute

from runner.worker.call_scope import current
from runner.worker.internals.exchange import RelayedExchange
from runner.worker.internals.low_level import low_level
from runner.worker.wire import VISIBILITY_SUFFIX, RequestFacts, WireError, full_key

__all__ = [
    "Ask",
    "auth_of",
    "capabilities",
    "find_tool",
    "inner_provider",
    "lifespan",
    "lists_of",
    "masks_errors",
    "mend_returned_texts",
    "refuse",
    "routes",
    "serve_own",
    "serve_raw",
    "single_call_server",
    "task_tools",
    "warm_type_adapters",
]

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Sends the host a request, by method and params, and returns its answer."""

_CHANGES = (
    *("add_tool", "add_resource", "add_template", "add_prompt"),
    *("remove_tool", "remove_resource", "remove_template", "remove_prompt"),
)
_STATE_COLLECTION = "fastmcp_state"
_OWN_META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "runner", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_OF_JWT = ("jwks_uri", "public_key", "algorithm", "issuer", "audience", "required_scopes")
_HALF = "surrogates not allowed"
_NO_ARGUMENT = "\0"
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
# The SDK's code for unknown exceptions, in protocol versions with sessions.
_EXCEPTION = 0


def inner_provider(provider: Provider) -> Provider:
    """Return the provider inside its namespace and transform wrappers."""
    while isinstance(inner := getattr(provider, "_inner", None), Provider):
        provider = inner
    return provider


class _HostState:
    """Session state of a server, kept by the host, in place of FastMCP's `PydanticAdapter` of a store.

    That one imports a library that takes a fifth of the start-up time of `runner call`. FastMCP reads a key
    that ends in `VISIBILITY_SUFFIX` in every request, and rarely finds a value. Such values are sent with the
    call, so that they cost no round trip.
    """

    def __init__(self, ask: Ask, collection: str) -> None:
        self._ask = ask
        self._collection = collection

    async def get(self, key: str) -> StateValue | None:
        if key.endswith(VISIBILITY_SUFFIX):
            value = _known_state().get(full_key(self._collection, key))
        else:
            value = (await self._ask("state/get", {"key": key, "collection": self._collection}))["value"]
        return None if value is None else StateValue.model_validate(value)

    async def put(self, key: str, value: StateValue, *, ttl: float | None = None) -> None:
        written = value.model_dump(mode="json")
        facts = {"key": key, "collection": self._collection, "value": written, "ttl": ttl}
        await self._ask("state/put", facts)
        if key.endswith(VISIBILITY_SUFFIX):
            _known_state()[full_key(self._collection, key)] = written

    async def delete(self, key: str) -> bool:
        answer = await self._ask("state/delete", {"key": key, "collection": self._collection})
        return bool(answer["deleted"])


def _known_state() -> dict[str, dict[str, Any]]:
    scope = current()
    return {} if scope is None else scope.known


async def single_call_server(server: FastMCP, ask: Ask) -> None:
    """Change a loaded server so that a worker can serve one request with it.

    The host seals request state, so the server must not. The host also keeps tasks and session state, so here
    every tool runs in the foreground; its list still marks tools that may be tasks.

    Args:
        server: The server.
        ask: Sends the host a request, and returns its answer.
    """
    low = low_level(server)
    low.middleware[:] = [item for item in low.middleware if not isinstance(item, RequestStateBoundary)]
    for tool in await server.local_provider.list_tools():
        if tool.task_config.supports_tasks() and not tool.execution:
            tool.execution = mcp_types.ToolExecution(task_support=tool.task_config.mode)
        tool.task_config = TaskConfig(mode="forbidden")
    server._extensions.clear()
    _keep_state_in(ask, server, _STATE_COLLECTION)


def _keep_state_in(ask: Ask, server: FastMCP, collection: str) -> None:
    """Let a server and those that it mounts keep their session state in the host, each in a collection."""
    vars(server)["_FastMCP__state_store"] = _HostState(ask, collection)
    for number, provider in enumerate(map(inner_provider, server.providers)):
        if isinstance(provider, FastMCPProvider):
            _keep_state_in(ask, provider.server, f"{collection}/{number}")


async def warm_type_adapters(server: FastMCP) -> None:
    """Build the argument validators that the first call of each tool would build.

    A call with an argument that no function has builds them, and is refused before the author's code runs.
    A sync tool without injected parameters would validate in a thread, which outlives the call; a process
    with two threads cannot be forked.
    """
    for tool in await server.local_provider.list_tools():
        if type(tool) is not FunctionTool:
            continue
        is_plain = without_injected_parameters(tool.fn) is tool.fn
        warmed = tool.model_copy(update={"run_in_thread": False}) if is_plain else tool
        with contextlib.suppress(ValidationError):
            await warmed.run({_NO_ARGUMENT: None})


def mend_returned_texts() -> None:
    """Let a lone surrogate in a returned text affect that text only, not the whole result.

    File names that are not UTF-8 contain lone surrogates (PEP 383), which FastMCP cannot encode as JSON.
    Results that can be encoded are neither scanned nor changed.
    """
    convert = Tool.convert_result

    def converted(tool: Tool, raw_value: Any) -> ToolResult:
        try:
            return convert(tool, raw_value)
        except (PydanticSerializationError, UnicodeEncodeError, ToolError) as error:
            # FastMCP turns it into a ToolError if the tool has an output schema.
            if _HALF not in str(error):
                raise
            return convert(tool, _plain(raw_value))

    make = ToolResult.__init__

    def made(
        result: ToolResult, content: Any = None, structured_content: Any = None, *rest: Any, **more: Any
    ) -> None:
        try:
            make(result, content, structured_content, *rest, **more)
        except (PydanticSerializationError, UnicodeEncodeError) as error:
            if _HALF not in str(error):
                raise
            make(result, _plain(content), _plain(structured_content), *rest, **more)

    Tool.convert_result = converted  # type: ignore[method-assign, assignment]
    ToolResult.__init__ = made  # type: ignore[method-assign, assignment]


def _plain(value: Any) -> Any:
    return _mended(_ANYTHING.dump_python(value, mode="python", fallback=str, warnings=False))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_mended(item) for item in value]
    # A path contains its name as the system returned it.
    return _mended(str(value)) if isinstance(value, PurePath) else value


@asynccontextmanager
async def lifespan(server: FastMCP) -> AsyncIterator[Any]:
    """Enter the server's own lifespan; yield the state that its requests need."""
    low = low_level(server)
    async with low.lifespan(low) as state:
        yield state


def has_lifespan(server: FastMCP) -> bool:
    """Return whether the author of a server, or of one that it mounts, has written a lifespan."""
    mounted = [inner for inner in map(inner_provider, server.providers) if isinstance(inner, FastMCPProvider)]
    has_default = any(value is default_lifespan for value in vars(server).values())
    return not has_default or any(has_lifespan(inner.server) for inner in mounted)


async def find_tool(server: FastMCP, name: str) -> dict[str, Any]:
    """Return the tool of that name, as a list of one or none, looked up like a call of it."""
    async with Context(fastmcp=server):
        tool = await server.get_tool(name)
        hashed = parse_hashed_backend_name(name) if tool is None else None
        if hashed is not None:
            tool = await server.get_tool_by_hash(*hashed)
    if tool is None:
        return {"tools": []}
    return {"tools": [tool.to_mcp_tool(name=name).model_dump(by_alias=True, mode="json", exclude_none=True)]}


def lists_of(server: FastMCP) -> Callable[[], object]:
    """Return a function whose value changes with the lists of a server's components."""
    count = 0

    def counting(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            return change(*args, **kwargs)

        return changed

    def watch(one: FastMCP) -> None:
        for provider in map(inner_provider, one.providers):
            if isinstance(provider, FastMCPProvider):
                watch(provider.server)
            elif isinstance(provider, LocalProvider):
                for name in _CHANGES:
                    vars(provider)[name] = counting(getattr(provider, name))

    watch(server)
    return lambda: (count, _made_of(server))


def _made_of(server: FastMCP) -> tuple[object, ...]:
    """Return the ids of all objects that affect the lists of a server, except its components."""
    parts: list[object] = [tuple(map(id, server.transforms)), tuple(map(id, server.middleware))]
    for provider in map(inner_provider, server.providers):
        parts.append((id(provider), tuple(map(id, provider.transforms))))
        if isinstance(provider, FastMCPProvider):
            parts.append(_made_of(provider.server))
    return tuple(parts)


def masks_errors(server: FastMCP) -> bool:
    """Return whether a server hides the details of exceptions from its clients."""
    return bool(server._mask_error_details)


def auth_of(auth: Any) -> dict[str, Any] | None:
    """Return the class of a file's token verifier and, for JSON web tokens, its settings."""
    if auth is None:
        return None
    verifier = getattr(auth, "token_verifier", auth)
    # By name: unless the file uses the class, importing it would take long.
    is_jwt = any(cls.__name__ == "JWTVerifier" for cls in type(verifier).__mro__)
    facts = {name: getattr(verifier, name, None) for name in _OF_JWT} if is_jwt else {}
    if str(facts.get("algorithm", "")).startswith("HS"):
        # The key is a secret, which must not be sent.
        facts = {}
    return {"kind": type(auth).__name__, "jwt": facts or None}


async def task_tools(server: FastMCP) -> dict[str, int]:
    """Return the tools that may become tasks of MCP, each with its poll interval in milliseconds."""
    return {
        tool.name: int(tool.task_config.poll_interval.total_seconds() * 1000)
        for tool in await server.list_tools(run_middleware=False)
        if tool.task_config.supports_tasks()
    }


def routes(server: FastMCP) -> list[BaseRoute]:
    """Return the HTTP routes that the file adds to its server, and to those that it mounts."""
    return server._get_additional_http_routes()


def capabilities(server: FastMCP) -> dict[str, Any]:
    """Return the capabilities that the server declares."""
    low: Any = low_level(server)
    value = low.get_capabilities(low.notification_options, server.experimental_capabilities or None)
    message: dict[str, Any] = value.model_dump(by_alias=True, mode="json", exclude_none=True)
    return message


async def serve_raw(
    low: Server[Any],
    method: str,
    params: Mapping[str, Any] | None,
    facts: RequestFacts,
    state: Any,
    *,
    on_notify: Callable[[str, Mapping[str, Any] | None], Awaitable[None]],
    on_request: Callable[[str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Serve one raw request with the handlers of a low-level server; return the wire result.

    Raises:
        WireError: The server answered with a JSON-RPC error.
    """
    set_transport(facts.transport)  # type: ignore[arg-type]
    user = AuthenticatedUser(AccessToken(**facts.token)) if facts.token else None
    if user is not None:
        auth_context_var.set(user)
    exchange = RelayedExchange(
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
    runner = ServerRunner(low, connection, state)
    try:
        return await runner.on_request(exchange, method, params)
    except Exception as error:
        error_data = _error_data(error, facts.protocol)
        raise WireError(error_data.model_dump(by_alias=True, exclude_none=True)) from error
    finally:
        # Without callbacks there is nothing to close; the scope takes a third of the time of an empty call.
        if getattr(connection.exit_stack, "_exit_callbacks", True):
            await aclose_shielded(connection)


async def serve_own(
    low: Server[Any], method: str, params: Mapping[str, Any], state: Any, **facts: Any
) -> dict[str, Any]:
    """Serve a request of our own, which no client has sent; return the wire result.

    Args:
        low: The low-level server.
        method: The method.
        params: Its params, without `_meta`.
        state: State from the server's lifespan.
        facts: Facts about the request, if it is not one of stdio.

    Raises:
        WireError: The server answered with a JSON-RPC error.
    """
    version = LATEST_MODERN_VERSION
    own: dict[str, Any] = {"request_id": 0, "protocol": version, "session_id": "load", "transport": "stdio"}
    request, whole = {**params, "_meta": _OWN_META}, RequestFacts(**(own | facts))
    return await serve_raw(low, method, request, whole, state, on_notify=_unheard, on_request=refuse)


async def _unheard(_method: str, _params: object) -> None:
    return None


async def refuse(method: str, _params: object) -> dict[str, Any]:
    """Refuse a request to the host outside of calls."""
    raise RuntimeError(f"no {method} while a file is loaded")


def _error_data(error: Exception, protocol: str) -> mcp_types.ErrorData:
    """Return the error of an exception for a client, as plain SDK servers of that protocol send it."""
    if protocol in HANDSHAKE_PROTOCOL_VERSIONS and handler_exception_to_error_data(error) is None:
        return mcp_types.ErrorData(code=_EXCEPTION, message=str(error))
    return modern_error_data(error)


def _http_request(facts: RequestFacts, user: AuthenticatedUser | None) -> ServerMessageMetadata | None:
    if facts.headers is None:
        return None
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": facts.query.encode("latin-1"),
        "client": facts.peer,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in facts.headers],
    }
    if user is not None:
        scope["user"] = user
    return ServerMessageMetadata(request_context=Request(scope))
