"""The two eras of the protocol: handshake versions, which have sessions, and modern ones, which have none.

Source: MCP specification 2025-11-25, "Lifecycle"; 2026-07-28, "Caching" and "Results".
"""

from collections.abc import Mapping
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

__all__ = ["has_sessions", "in_era_of"]

_NOT_KEPT = frozenset({"tools/call", "prompts/get", "completion/complete"})
"""Methods whose results clients do not cache, so that they have no caching fields."""

_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
_LATER_ONLY = frozenset({"resultType", *_UNCACHED})


def has_sessions(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Return whether the client's protocol version has a handshake, and thus sessions."""
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def in_era_of(ctx: ServerRequestContext[Any, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a request in the form of its client's era.

    `resultType` and the caching fields are removed for the handshake era, and added if missing for the other.
    """
    if has_sessions(ctx):
        return {key: item for key, item in result.items() if key not in _LATER_ONLY}
    caching = {} if ctx.method in _NOT_KEPT else _UNCACHED
    return {**caching, "resultType": "complete", **result}
