"""A whole MCP tool result through the guard, and valid MCP again afterwards.

Hosts show a model the content blocks, the structured content, or both; so both are guarded together, as one
value with one limit. A stored file becomes a `resource_link` to `artifact://ID`, in place of its block. A
reference in a field becomes text. A block that is not valid MCP loses its wrong optional fields, or becomes
text. `_meta`, also of a block, and `isError` are not text for a model and stay.

Source: MCP specification 2025-11-25, tools, section "Tool Result"; document 004, section 2.3.
"""

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import mcp_types
from pydantic import BaseModel, ValidationError

from runner.contract.jsonable import mapping_of, without
from runner.contract.payload import payload_of, with_payload
from runner.formats.base64 import canonical
from runner.formats.terminal_text import visible
from runner.output_guard.json_view import text_of, view
from runner.output_guard.pipeline import Guarded, guard
from runner.output_guard.references import in_words
from runner.output_guard.storing import Keeper
from runner.output_guard.transformer import TransformContext, Transformer

__all__ = ["guard_message", "guard_prompt"]

_SHOWN = ("content", "structuredContent")
_HOLDERS = frozenset({"image", "audio", "resource"})
_ADDRESSES = ("uri", "src")
_BLOCKS: Mapping[str, type[BaseModel]] = {
    "text": mcp_types.TextContent,
    "image": mcp_types.ImageContent,
    "audio": mcp_types.AudioContent,
    "resource_link": mcp_types.ResourceLink,
    "resource": mcp_types.EmbeddedResource,
}
# Further keys of the result of `prompts/get`; clients know no others.
_BESIDE_MESSAGES = ("_meta", "resultType")


async def guard_message(
    message: Mapping[str, Any], keeper: Keeper, *, transformer: Transformer | None = None
) -> Guarded:
    """Return the result of `tools/call` with its text for a model guarded; the value is such a result.

    Args:
        message: The result as on the wire; it is never changed.
        keeper: Stores removed content.
        transformer: The operator's own function; it gets the tool's return value, see
            `runner.contract.payload`.
    """
    shown = {key: message[key] for key in _SHOWN if message.get(key) is not None}
    sent = shown.get("content")
    blocks = sent if isinstance(sent, list) else []
    if any(_has_meta(block) for block in blocks):
        shown["content"] = [_without_meta(block) for block in blocks]
    of_payload = None if transformer is None else _of_payload(transformer)
    guarded = await guard(shown, keeper, transformer=of_payload)
    is_same = guarded.value is shown
    if is_same and all(_is_valid(block) for block in blocks):
        return dataclasses.replace(guarded, value=dict(message))
    rest = {key: item for key, item in message.items() if key not in _SHOWN and item is not None}
    made = _lawful(guarded.value, list(shown))
    if len(made["content"]) == len(blocks) and not guarded.transformed:
        made["content"] = [_with_meta(new, old) for new, old in zip(made["content"], blocks, strict=True)]
    return dataclasses.replace(guarded, value=rest | made)


async def guard_prompt(result: Mapping[str, Any], keeper: Keeper) -> Guarded:
    """Return the result of `prompts/get` with its messages and description guarded, as valid MCP.

    Args:
        result: The result as on the wire; it is not changed.
        keeper: Stores removed content.
    """
    sent = result.get("messages")
    messages = [each for each in sent if isinstance(each, Mapping)] if isinstance(sent, list) else []
    parts: list[tuple[str, Any]] = []
    for each in messages:
        content = each.get("content")
        role = "assistant" if each.get("role") == "assistant" else "user"
        parts += [(role, block) for block in (content if isinstance(content, list) else [content])]
    description = result.get("description")
    if isinstance(description, str):
        # Last, so that the other parts keep the indices of the messages.
        parts.append(("", _text(description)))
    guarded = await guard_message({"content": [block for _, block in parts]}, keeper)
    blocks = [_block(block) for block in guarded.value["content"]]
    made = {key: result[key] for key in _BESIDE_MESSAGES if key in result}
    if len(blocks) != len(parts):
        # The whole result was too long.
        roles = ["user"] * len(blocks)
    else:
        roles = [role for role, _ in parts]
        if isinstance(description, str):
            made["description"] = visible(str(blocks.pop().get("text", "")))
    made["messages"] = [{"role": role, "content": block} for role, block in zip(roles, blocks, strict=False)]
    return dataclasses.replace(guarded, value=made)


def _of_payload(transformer: Transformer) -> Transformer:
    """Return a transformer of whole results, given a transformer of a tool's return value."""

    async def transform(tool: str, shown: Any, context: TransformContext) -> Any:
        made = transformer(tool, payload_of(shown), context)
        if inspect.isawaitable(made):
            made = await made
        if made is None:
            return None
        value = view(made, max_elements=sys.maxsize).value
        return with_payload(shown, value, text=text_of(value))

    return transform


def _lawful(value: Any, shown: list[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or not value or not set(value) <= set(_SHOWN):
        # The value of a transformer, or the reference to the whole result.
        structured = {"structuredContent": value} if _SHOWN[1] in shown and isinstance(value, dict) else {}
        text = value if not structured else in_words(value) or value.get("summary", "see structuredContent")
        return {"content": [_text(text)]} | structured
    content = value.get("content", [])
    blocks = content if isinstance(content, list) else [content]
    structured = {"structuredContent": value[_SHOWN[1]]} if _SHOWN[1] in value else {}
    return {"content": [_block(block) for block in blocks]} | structured


def _block(block: Any) -> dict[str, Any]:
    """Return a guarded block as a block of the protocol."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in _BLOCKS:
        return _text(block)
    made = _lifted(block)
    if kind in _HOLDERS and ("artifact" in made or "truncated" in made):
        return _link(made)
    # A long text keeps its beginning and end, which a reference as text lacks.
    if kind == "text":
        made = made | {"text": text_of(made.get("text"))}
    inner = made.get("resource")
    if isinstance(inner, dict) and isinstance(inner.get("text"), dict):
        made = made | {"resource": inner | {"text": text_of(inner["text"])}}
    made = {key: _worded(key, item) for key, item in made.items() if item is not None}
    if _is_valid(made):
        return made
    fields = _BLOCKS[kind].model_fields.items()
    required = {"type", "_meta", *(field.alias or name for name, field in fields if field.is_required())}
    needed = {key: item for key, item in made.items() if key in required}
    return needed if _is_valid(needed) else _text(block)


def _is_valid(block: object) -> bool:
    """Return whether clients accept a block: those of the TypeScript SDK also decode the base64 in it."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str) or block["type"] not in _BLOCKS:
        return False
    inner = mapping_of(block.get("resource"))
    parts = [block, inner, *(item for item in block.values() if isinstance(item, dict))]
    if any(item is None for part in parts for item in part.values()):
        # A key may be absent, but not null.
        return False
    try:
        _BLOCKS[block["type"]].model_validate(block, by_alias=True, by_name=False)
    except ValidationError:
        return False
    held = inner.get("blob") if block["type"] == "resource" else block.get("data", "")
    return held is None or block["type"] not in _HOLDERS or canonical(held) is not None


def _worded(key: str, item: Any) -> Any:
    """Return a field of a block with text in place of references at any depth."""
    if isinstance(item, list):
        return [_worded(key, each) for each in item if each is not None]
    if not isinstance(item, dict) or key == "_meta":
        return item
    words = in_words(item)
    if words is None:
        return {name: _worded(name, each) for name, each in item.items() if each is not None}
    artifact = item.get("artifact")
    if key in _ADDRESSES and isinstance(artifact, dict):
        return f"artifact://{artifact.get('id')}"
    return words


def _has_meta(block: object) -> bool:
    fields = mapping_of(block)
    return "_meta" in fields or "_meta" in mapping_of(fields.get("resource"))


def _without_meta(block: Any) -> Any:
    if not _has_meta(block):
        return block
    made = without(block, "_meta")
    resource = made.get("resource")
    return made | {"resource": without(resource, "_meta")} if isinstance(resource, dict) else made


def _with_meta(made: dict[str, Any], block: Any) -> dict[str, Any]:
    """Return a guarded block with the `_meta` of the original block; a link has that of both its parts."""
    if not _has_meta(block):
        return made
    own, inner = dict(mapping_of(block.get("_meta"))), mapping_of(block.get("resource")).get("_meta")
    if isinstance(inner, dict) and isinstance(made.get("resource"), dict):
        made = {**made, "resource": {**made["resource"], "_meta": inner}}
    elif isinstance(inner, dict):
        own = inner | own
    return {**made, "_meta": own} if own else made


def _lifted(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block whose bytes were removed from a field, with the reference as its own."""
    resource = block.get("resource")
    holder, key = (resource, "blob") if isinstance(resource, dict) else (block, "data")
    taken = holder.get(key)
    if block["type"] not in _HOLDERS or not isinstance(taken, dict):
        return block
    rest = {name: item for name, item in {**block, **holder}.items() if name not in (key, "resource")}
    return rest | taken


def _link(block: dict[str, Any]) -> dict[str, Any]:
    artifact = block.get("artifact")
    if not isinstance(artifact, dict) or not isinstance(artifact.get("id"), str):
        return _text(block)
    words = [each for each in (block.get("summary"), block.get("read")) if isinstance(each, str)]
    if block.get("type") in ("image", "audio"):
        words.insert(0, "Not shown: the output guard keeps pictures and sounds as files")
    link = {
        "type": "resource_link",
        "uri": f"artifact://{artifact['id']}",
        "name": artifact.get("filename") or artifact["id"],
        "description": "; ".join(words) or None,
        "mimeType": artifact.get("mime_type"),
        "size": artifact.get("size_bytes"),
        "annotations": block.get("annotations"),
    }
    made = {key: item for key, item in link.items() if item is not None}
    # The block may be a tool's own, with any fields.
    return made if _is_valid(made) else _text(block)


def _text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": text_of(value)}
