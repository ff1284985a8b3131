"""The SDK's validation of results, in bounded time.

Each list item that violates the protocol costs a dozen errors of pydantic: a megabyte of them took seven
seconds. So lists are validated in pieces, and the first invalid piece ends the validation.
"""

from collections.abc import Mapping
from typing import Any

from mcp_types import methods

__all__ = ["mend_results"]

# The SDK's original, even if it is replaced repeatedly.
_SERIALIZE = methods.serialize_server_result
_PIECE_ITEMS = 100
_LISTS = ("content", "contents", "messages", "prompts", "resources", "resourceTemplates", "tools")


def mend_results() -> None:
    """Let the SDK validate lists in pieces, and send the answer that a call has become a task.

    The SDK supports tasks in clients only. FastMCP's own package for tasks patches it too, because there is
    no other way yet.
    """
    vars(methods)["serialize_server_result"] = _serialized


def _serialized(method: str, version: str, data: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    if method == "tools/call" and data.get("resultType") == "task" and not more:
        return dict(data)
    lists = [key for key in _LISTS if isinstance(data.get(key), list) and len(data[key]) > _PIECE_ITEMS]
    # Any object is valid, so none of it is validated.
    structured = data.get("structuredContent")
    apart: dict[str, Any] = {"structuredContent": {}} if isinstance(structured, Mapping) else {}
    first = {**data, **apart, **{key: data[key][:_PIECE_ITEMS] for key in lists}}
    made = _SERIALIZE(method, version, first, **more)
    # The required fields beside a list are short.
    rest: dict[str, Any] = {
        key: item for key, item in data.items() if isinstance(item, str | int) and len(str(item)) < 100
    }
    rest |= {key: [] for key in lists}
    for key in lists:
        for start in range(_PIECE_ITEMS, len(data[key]) if key in made else 0, _PIECE_ITEMS):
            piece = {**rest, key: data[key][start : start + _PIECE_ITEMS]}
            made[key] += _SERIALIZE(method, version, piece, **more)[key]
    return made | {"structuredContent": structured} if apart and "structuredContent" in made else made
