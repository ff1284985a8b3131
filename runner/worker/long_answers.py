"""Long texts in a tool's answer: sent once from worker to host, and refused early if they are too long.

For older clients, FastMCP repeats a structured text as a text block. If it is long, the worker sends only the
structured text, and the host restores the block. A far too long result is not even encoded as JSON.
"""

from collections.abc import Mapping
from typing import Any

from fastmcp.tools import ToolResult
from mcp_types import TextContent

__all__ = ["FOLDED", "folded", "least_bytes", "unfolded"]

FOLDED = "folded"
"""Key of an answer whose first text block was removed, since it equals the structured text."""

_LONG_CHARS = 100_000
_WRAPPED = "result"


def folded(result: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a result without a long first text that equals its structured text, and whether it had one."""
    text, content = _structured(result), result.get("content")
    if text is None or len(text) < _LONG_CHARS or not isinstance(content, list) or not content:
        return result, False
    first, *others = content
    if not isinstance(first, dict) or first.get("text") != text:
        return result, False
    return {**result, "content": [{**first, "text": ""}, *others]}, True


def unfolded(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a result with the text that `folded` removed; any other value unchanged."""
    text, content = _structured(result), result.get("content")
    if text is None or not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return result
    return {**result, "content": [{**content[0], "text": text}, *content[1:]]}


def least_bytes(result: ToolResult) -> int:
    """Return a lower bound of the length of a result, by its texts."""
    wrapped = (result.structured_content or {}).get(_WRAPPED)
    text = wrapped if isinstance(wrapped, str) else None
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    others = texts[1:] if texts and texts[0] == text else texts
    return sum(map(len, others)) + (0 if text is None else len(text))


def _structured(result: Mapping[str, Any]) -> str | None:
    structured = result.get("structuredContent")
    text = structured.get(_WRAPPED) if isinstance(structured, dict) else None
    return text if isinstance(text, str) else None
