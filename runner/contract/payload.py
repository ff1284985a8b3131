"""Conversion between MCP results and the values that tools returned.

The value is the structured content, without FastMCP's wrapping of values other than objects; else the only
text, read as JSON if it is an object or a list; else the content blocks.

Source: MCP specification 2025-11-25, tools, "Structured Content"; rule N2 of the conformance cases;
requirements S2-20 to S2-24.
"""

from collections.abc import Mapping
from typing import Any

from runner.contract.normalise import parsed

__all__ = ["payload_of", "with_payload"]

_WRAPPED = {"result"}


def payload_of(message: Mapping[str, Any]) -> Any:
    """Return the return value of a tool in a result, as plain JSON values."""
    structured = message.get("structuredContent")
    if isinstance(structured, Mapping):
        return structured["result"] if structured.keys() == _WRAPPED else structured
    blocks = message.get("content")
    if isinstance(blocks, list) and len(blocks) == 1 and isinstance(blocks[0], Mapping):
        text = blocks[0].get("text")
        if blocks[0].get("type") == "text" and isinstance(text, str):
            found = parsed(text)
            return text if found is None else found
    return blocks


def with_payload(message: Mapping[str, Any], payload: Any, *, text: str) -> dict[str, Any]:
    """Return the `content` and `structuredContent` of a result whose tool returned `payload` instead.

    Args:
        message: The result.
        payload: The replacement, as plain JSON values.
        text: `payload` as text.
    """
    made: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    structured = message.get("structuredContent")
    if isinstance(structured, Mapping):
        wrapped = structured.keys() == _WRAPPED or not isinstance(payload, dict)
        made["structuredContent"] = {"result": payload} if wrapped else payload
    return made
