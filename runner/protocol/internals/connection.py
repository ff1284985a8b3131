"""A client's connection to the host: its era, its session, its log level, and messages to it."""

import uuid
from collections.abc import Collection, Mapping
from typing import Any, get_args

from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from mcp_types import LoggingLevel
from pydantic import BaseModel, Field, RootModel
from starlette.datastructures import Headers
from starlette.types import Scope

__all__ = [
    "connection_levels",
    "connection_of",
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


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """Return the connection of a request, which outlives it in the handshake era."""
    return ctx.session._connection


def session_of(connection: Connection, scope: Scope | None) -> str:
    """Return the id of the session of a connection: the protocol's, or one of our own that stays.

    Args:
        connection: The connection of a request.
        scope: The request over HTTP, as in ASGI, if it came so.
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
    """Remember the least level of log messages that a client sets for its session; middleware of the SDK."""
    result = await call_next(ctx)
    if ctx.method == "logging/setLevel" and ctx.params is not None:
        # Only what passed the SDK's validation is remembered.
        connection_of(ctx).state[_LEAST] = ctx.params["level"]
    return result


def message_levels(ctx: ServerRequestContext[Any, Any]) -> frozenset[str]:
    """Return the levels of log messages that the client wants to get, in its era's way of asking."""
    return _above_least(connection_of(ctx), allowed_log_levels(ctx.protocol_version, ctx.meta))


def connection_levels(connection: Connection) -> frozenset[str]:
    """Return the levels of log messages that a client wants to get outside of any request."""
    return _above_least(connection, allowed_log_levels(connection.protocol_version, None))


def _above_least(connection: Connection, allowed: Collection[str]) -> frozenset[str]:
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
