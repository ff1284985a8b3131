"""The check of results in the SDK, in a bounded time.

Each item of a list that breaks the protocol costs a dozen errors of pydantic: a megabyte of them took seven
seconds. So lists are checked in pieces, of which the first that is wrong ends the check.
"""

from collections.abc import Mapping
from typing import Any

from mcp_types import methods

__all__ = ["mend_results"]

# As the SDK has it, however often it is replaced.
_SERIALIZE = methods.serialize_server_result
_PIECE_ITEMS = 100
_LISTS = ("content", "contents", "messages", "prompts", "resources", "resourceTemplates", "tools")


def mend_results() -> None:
    """Let the SDK check lists in pieces, and send a call's answer that it has become a task.

    Tasks it knows in clients only. FastMCP's own package for tasks does likewise, and says why: there is no
    other way yet.
    """
    vars(methods)["serialize_server_result"] = _serialized


def _serialized(method: str, version: str, data: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    if method == "tools/call" and data.get("resultType") == "task" and not more:
        return dict(data)
    lists = [key for key in _LISTS if isinstance(data.get(key), list) and len(data[key]) > _PIECE_ITEMS]
    # It may be anything, so nothing of it has to be looked at.
    structured = data.get("structuredContent")
    apart: dict[str, Any] = {"structuredContent": {}} if isinstance(structured, Mapping) else {}
    first = {**data, **apart, **{key: data[key][:_PIECE_ITEMS] for key in lists}}
    made = _SERIALIZE(method, version, first, **more)
    # What an answer must have beside its list is short.
    rest: dict[str, Any] = {
        key: item for key, item in data.items() if isinstance(item, str | int) and len(str(item)) < 100
    }
    rest |= {key: [] for key in lists}
    for key in lists:
        for start in range(_PIECE_ITEMS, len(data[key]) if key in made else 0, _PIECE_ITEMS):
            piece = {**rest, key: data[key][start : start + _PIECE_ITEMS]}
            made[key] += _SERIALIZE(method, version, piece, **more)[key]
    return made | {"structuredContent": structured} if apart and "structuredContent" in made else made
