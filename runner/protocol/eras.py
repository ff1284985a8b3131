"""The two eras of the protocol: versions with sessions, that is a handshake, and those after.

Source: MCP specification 2025-11-25, "Lifecycle"; 2026-07-28, "Caching" and "Results".
"""

from collections.abc import Mapping
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

__all__ = ["has_sessions", "in_era_of"]

_NOT_KEPT = frozenset({"tools/call", "prompts/get", "completion/complete"})
"""Methods whose results nobody keeps, so that they say nothing of it."""

_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
_LATER_ONLY = frozenset({"resultType", *_UNCACHED})


def has_sessions(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Return whether the client's protocol has sessions, that is a handshake."""
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def in_era_of(ctx: ServerRequestContext[Any, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a request in the form of its client's protocol, whichever it is in.

    What the result says of itself, as how long it may be kept, it goes on to say where that can be said.
    """
    if has_sessions(ctx):
        return {key: item for key, item in result.items() if key not in _LATER_ONLY}
    caching = {} if ctx.method in _NOT_KEPT else _UNCACHED
    return {**caching, "resultType": "complete", **result}
