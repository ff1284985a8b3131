"""Tool calls that are answered directly: what every transport takes for one.

A call of the modern era needs nothing but itself. The SDK serves it with tasks, streams and contexts that
the host has no use for, and which are much of what it does for a call. So a request that is exactly what a
client sends is answered without them, and everything unusual goes to the SDK as it came.

Source: MCP specification 2026-07-28, "Basic protocol" on the fields of each request.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from starlette.types import Scope

__all__ = ["Answer", "DirectCall", "Notify", "is_traced", "is_usual"]

_PARAMS = frozenset({"name", "arguments", "_meta"})

Notify = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Sends a client a notification ahead of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCall:
    """One `tools/call` as it came.

    Attributes:
        id: Of the client's request.
        params: Its params.
        notify: Sends its client a notification ahead of the answer.
        scope: The HTTP request's, as in ASGI, if it came over HTTP.
    """

    id: str | int
    params: dict[str, Any]
    notify: Notify
    scope: Scope | None = None


class Answer(Protocol):
    """What answers direct calls."""

    def takes(self, tool: str) -> bool:
        """Say whether calls of a tool may come directly."""
        ...

    async def answer(self, call: DirectCall) -> dict[str, Any]:
        """Return the result of a call. What it raises becomes a JSON-RPC error."""
        ...


def is_usual(params: object) -> bool:
    """Say whether the params of a `tools/call` hold what is usual and nothing else."""
    return (
        isinstance(params, dict)
        and params.keys() <= _PARAMS
        and isinstance(params.get("name"), str)
        and isinstance(params.get("arguments", {}), dict)
        and _is_envelope(params.get("_meta"))
    )


def is_traced() -> bool:
    """Say whether somebody traces this server with OpenTelemetry, which the SDK sees to."""
    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


def _is_envelope(meta: object) -> bool:
    return (
        isinstance(meta, dict)
        and meta.get(PROTOCOL_VERSION_META_KEY) == LATEST_MODERN_VERSION
        and CLIENT_CAPABILITIES_META_KEY in meta
        # Which messages a client gets is for the SDK to read.
        and LOG_LEVEL_META_KEY not in meta
    )
