"""A client's connection to the host: its era, session, log level and facts for a worker; messages to it."""

import json
import uuid
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, get_args

from fastmcp.server.auth import AccessToken
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    LoggingLevel,
)
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import BaseModel, Field, RootModel
from starlette.datastructures import Headers
from starlette.types import Scope

from runner.worker.wire import RequestFacts

__all__ = [
    "connection_facts",
    "connection_levels",
    "connection_of",
    "credential_of",
    "direct_facts",
    "is_ready",
    "message_levels",
    "note_level",
    "notify_client",
    "request_client",
    "session_of",
]

_LEVELS: tuple[str, ...] = get_args(LoggingLevel)
_SESSION = "toolcell_session"
_LEAST = "toolcell_least_level"
_ANNOUNCED = "toolcell_client"


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """Return the connection of a request; in the handshake era it outlives the request."""
    return ctx.session._connection


def session_of(connection: Connection, scope: Scope | None) -> str:
    """Return the session id of a connection: the protocol's, or one of ours that it keeps.

    Args:
        connection: The connection of a request.
        scope: ASGI scope of the request; None over stdio.
    """
    known = connection.state.get(_SESSION) or connection.session_id
    if known is None and scope is not None:
        known = Headers(scope=scope).get("mcp-session-id")
    known = str(known or uuid.uuid4())
    connection.state[_SESSION] = known
    return known


def is_ready(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Return whether the connection has finished its handshake, where its era has one."""
    return connection_of(ctx).initialize_accepted


async def note_level(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Record the minimum log level that a client sets for its session; middleware of the SDK."""
    result = await call_next(ctx)
    if ctx.method == "logging/setLevel" and ctx.params is not None:
        # Only a level that passed the SDK's validation is recorded.
        connection_of(ctx).state[_LEAST] = ctx.params["level"]
    return result


def message_levels(ctx: ServerRequestContext[Any, Any]) -> frozenset[str]:
    """Return the log levels that the client requested, in the way of its era."""
    return connection_levels(connection_of(ctx), allowed_log_levels(ctx.protocol_version, ctx.meta))


def connection_levels(connection: Connection, allowed: Collection[str] | None = None) -> frozenset[str]:
    """Return the allowed log levels that a client requested.

    Args:
        connection: Its connection.
        allowed: The levels that the protocol allows; by default those outside of any request.
    """
    if allowed is None:
        allowed = allowed_log_levels(connection.protocol_version, None)
    least = connection.state.get(_LEAST)
    if least is None:
        return frozenset(allowed)
    return frozenset(level for level in allowed if _LEVELS.index(level) >= _LEVELS.index(least))


class _Raw(BaseModel):
    """A notification or request of any method: the SDK sends what a model is dumped to."""

    name: str = Field(serialization_alias="method")
    params: Mapping[str, Any] | None

    @property
    def method(self) -> str:
        """Return a method that the SDK has no types for, so that it passes on any answer, such as a task."""
        return ""


class _Result(RootModel[dict[str, Any]]):
    """A result of any shape."""


async def notify_client(
    ctx: ServerRequestContext[Any, Any], method: str, params: Mapping[str, Any] | None
) -> None:
    """Send a notification on the stream of this request."""
    message: Any = _Raw(name=method, params=params)
    await ctx.session.send_notification(message, related_request_id=ctx.request_id)


async def request_client(
    ctx: ServerRequestContext[Any, Any], method: str, params: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Send the client a request on the stream of this request."""
    message: Any = _Raw(name=method, params=params)
    here = ServerMessageMetadata(related_request_id=ctx.request_id)
    return (await ctx.session.send_request(message, _Result, metadata=here)).root


def credential_of(scope: Scope | None) -> object:
    """Return the credential of a request over HTTP, as the SDK compares it between requests."""
    user = None if scope is None else scope.get("user")
    return authorization_context(user) if isinstance(user, AuthenticatedUser) else None


def connection_facts(
    connection: Connection,
    scope: Scope | None,
    request_id: str | int | None,
    token: AccessToken | None,
    *,
    can_ask: bool,
) -> RequestFacts:
    """Collect the facts of a request on a connection with known client info.

    Args:
        connection: The connection.
        scope: ASGI scope of the request; None over stdio.
        request_id: Id of the request.
        token: The verified access token, where there is one.
        can_ask: Whether the client can receive requests while it waits.
    """
    # In the handshake era, a client sends its info only once.
    announced = connection.client_params, connection.client_capabilities
    cached = connection.state.get(_ANNOUNCED)
    if cached is None or cached[0] != announced:
        cached = connection.state[_ANNOUNCED] = announced, _announced(connection)
    info, able = cached[1]
    return RequestFacts(
        request_id=request_id,
        protocol=connection.protocol_version,
        session_id=session_of(connection, scope),
        transport="streamable-http" if scope is not None else "stdio",
        client_info=info,
        client_capabilities=able,
        token=token.model_dump(mode="json") if token else None,
        **_http_facts(scope),
        can_send_request=can_ask,
    )


def direct_facts(
    scope: Scope | None, request_id: str | int, params: Mapping[str, Any], token: AccessToken | None
) -> RequestFacts:
    """Collect the facts of a request of the modern era that bypassed the SDK."""
    meta = params["_meta"]
    info, able = _identity(json.dumps([meta.get(CLIENT_INFO_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]]))
    return RequestFacts(
        request_id=request_id,
        protocol=meta[PROTOCOL_VERSION_META_KEY],
        session_id=str(uuid.uuid4()),
        transport="streamable-http" if scope is not None else "stdio",
        client_info=info,
        client_capabilities=able,
        token=token.model_dump(mode="json") if token else None,
        **_http_facts(scope),
    )


@lru_cache(maxsize=64)
def _identity(envelope: str) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return a client's info as the SDK parses it; a client sends equal info each time."""
    return _announced(Connection.from_envelope(LATEST_MODERN_VERSION, *json.loads(envelope)))


def _announced(connection: Connection) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return the info and the capabilities that a client sent."""
    info = connection.client_params.client_info if connection.client_params else None
    able = connection.client_capabilities
    return (
        info.model_dump(by_alias=True, mode="json", exclude_none=True) if info else None,
        able.model_dump(by_alias=True, mode="json", exclude_none=True) if able else None,
    )


def _http_facts(scope: Scope | None) -> dict[str, Any]:
    """Return the facts of an HTTP request for a tool, without the cookie, a browser's credential."""
    if scope is None:
        return {}
    return {
        "headers": [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name.lower() != b"cookie"
        ],
        "query": scope.get("query_string", b"").decode("latin-1"),
        "peer": scope.get("client"),
    }
