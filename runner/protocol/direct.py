"""Selection of tool calls that are answered without the SDK, over every transport and in every era.

The SDK serves a call with tasks, streams and contexts that the host does not need, and that are most of its
cost. So a usual request is answered without them, and everything unusual is passed to the SDK unchanged.

A call of the later era is self-contained. One of the handshake era belongs to a session
(`runner.protocol.sessions`).

Source: MCP specification 2026-07-28, "Basic protocol" on the fields of each request; 2025-11-25,
"Lifecycle"; requirement S3-142.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCRequest,
)
from mcp_types.version import LATEST_MODERN_VERSION
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from starlette.types import Scope

from runner.protocol.internals.types import Connection
from runner.protocol.sessions import CallInFlight, LiveSession, Outlet

__all__ = ["Answerer", "Ask", "DirectCall", "Notify", "is_traced", "is_usual", "take"]

_PARAMS = frozenset({"name", "arguments", "_meta"})

Notify = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Sends a client a notification ahead of the answer."""

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Asks a client something ahead of the answer. Raises `MCPError` if it refuses, or cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCall:
    """One `tools/call` as it came.

    Attributes:
        id: Of the client's request.
        params: Its params.
        notify: Sends its client a notification ahead of the answer.
        ask: Asks its client something; None in the era in which no server may.
        can_ask: Whether the client can be asked now.
        connection: The SDK's, in the handshake era.
        scope: The HTTP request's, as in ASGI, if it came over HTTP.
    """

    id: str | int
    params: dict[str, Any]
    notify: Notify
    ask: Ask | None = None
    can_ask: bool = False
    connection: Connection | None = None
    scope: Scope | None = None


class Answerer(Protocol):
    """Protocol of an object that answers direct calls."""

    def takes(self, tool: str) -> bool:
        """Return whether calls of a tool may be answered directly."""
        ...

    def connected(self, session: str | None) -> LiveSession | None:
        """Return the connection of a session, or, for None, that over stdio; None if it is not known yet."""
        ...

    async def answer(self, call: DirectCall) -> dict[str, Any]:
        """Return the result of a call. What it raises becomes a JSON-RPC error."""
        ...


def take(
    answer: Answerer,
    session: LiveSession,
    request: JSONRPCRequest,
    out: Outlet,
    *,
    scope: Scope | None = None,
) -> bool:
    """Begin to answer a request in a session, if it is a usual call; return False for any other.

    Args:
        answer: Answers.
        session: The session.
        request: The request.
        out: Takes all messages about it.
        scope: The HTTP request's, if it came over HTTP.
    """
    params = request.params
    has_handshake = session.has_handshake
    if params is None or request.method != "tools/call" or not is_usual(params, has_handshake=has_handshake):
        return False
    if is_traced() or not session.is_ready or not answer.takes(params["name"]):
        return False

    async def serve(in_flight: CallInFlight) -> dict[str, Any]:
        call = DirectCall(
            id=request.id,
            params=params,
            notify=in_flight.notify,
            ask=in_flight.ask if has_handshake else None,
            can_ask=has_handshake and out.can_ask,
            connection=session.connection if has_handshake else None,
            scope=scope,
        )
        return await answer.answer(call)

    return session.begin(request, serve, out)


def is_usual(params: object, *, has_handshake: bool = False) -> bool:
    """Return whether the params of a `tools/call` hold what is usual in its era, and nothing else."""
    return (
        isinstance(params, dict)
        and params.keys() <= _PARAMS
        and isinstance(params.get("name"), str)
        and isinstance(params.get("arguments", {}), dict)
        and (_is_plain(params.get("_meta", {})) if has_handshake else _is_envelope(params.get("_meta")))
    )


def is_traced() -> bool:
    """Return whether this server is traced with OpenTelemetry, which the SDK implements."""
    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


def _is_plain(meta: object) -> bool:
    # The earlier era knows no envelope, and the SDK refuses one there.
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY not in meta


def _is_envelope(meta: object) -> bool:
    return (
        isinstance(meta, dict)
        and meta.get(PROTOCOL_VERSION_META_KEY) == LATEST_MODERN_VERSION
        and CLIENT_CAPABILITIES_META_KEY in meta
        # Which messages a client gets is for the SDK to read.
        and LOG_LEVEL_META_KEY not in meta
    )
