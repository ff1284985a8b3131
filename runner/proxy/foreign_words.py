"""Server texts that no output guard covers, without our keys and tokens, and of bounded length.

The guard covers what a model reads of a result. JSON-RPC errors, task messages and unknown keys bypass it,
and clients show those to models too. Pure.

Source: requirements S0-19, S0-23, S2-4; `docs/proxy.md`, "What passes, and what changes".
"""

from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError

from runner.files.download_links import without_tokens
from runner.formats.json_walks import map_texts

__all__ = [
    "MOST_CHARS",
    "legible_error",
    "legible_message",
    "without_our_words",
]

MOST_CHARS = 8192
"""Longest text that is passed on where the output guard does not look, in characters."""

_MOST_VALUES = 4096
_OURS = "toolcell/"
# A client sends these back as they are, or asks its model what they hold.
_KEPT = frozenset({"inputRequests", "nextCursor", "requestState"})


def without_our_words(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of a server, or a part of one, without `_meta` keys that only we may set."""
    meta = message.get("_meta")
    if not isinstance(meta, Mapping):
        return dict(message)
    return {**message, "_meta": {key: item for key, item in meta.items() if not key.startswith(_OURS)}}


def _clip(text: str) -> str:
    """Return a text of a length that a client can show."""
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]}… ({len(text) - MOST_CHARS} characters left out)"


def legible_message(message: Mapping[str, Any], *results: str) -> dict[str, Any]:
    """Return a server's message that no guard covers, in the form for a client.

    Args:
        message: The message.
        results: Keys that stay as they are, since other code checks them.
    """
    ours = without_our_words(message)
    if len(ours) > _MOST_VALUES:
        ours = {key: item for key, item in ours.items() if key in results or key in _KEPT}
    return {
        _clip(key): item if key in results or key in _KEPT else _legible(item) for key, item in ours.items()
    }


def legible_error(error: MCPError) -> MCPError:
    """Return a JSON-RPC error in the form for a client."""
    details = error.error
    return MCPError(code=details.code, message=_legible(details.message), data=_legible(details.data))


def _legible(value: Any) -> Any:
    """Return a value without tokens, of a length that a client can show; of many parts only a sentence."""
    count, left = 0, [value]
    while left:
        item = left.pop()
        members = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        count += len(members)
        if count > _MOST_VALUES:
            return f"left out: it has more than {_MOST_VALUES} values"
        left.extend(members)
    return map_texts(without_tokens(value), _clip)
