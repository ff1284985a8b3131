"""A whole MCP tool result behind the guard, and lawful again afterwards.

Hosts show a model the content blocks, the structured content, or both; so both are guarded together, as one
value with one limit. What the guard put into a block is then said in the blocks of the protocol: a stored
file is a `resource_link` to `artifact://ID`, in the place and order of the block that held it; a reference
within a text block is JSON text. `_meta` and `isError` are no text for a model and stay as they are.

Source: MCP specification 2025-11-25, tools, section "Tool Result"; document 004, section 2.3.
"""

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from runner.contract.payload import payload_of, with_payload
from runner.formats.terminal_text import visible
from runner.output_guard.config import GuardConfig
from runner.output_guard.json_view import text_of, view
from runner.output_guard.pipeline import Guarded, guard
from runner.output_guard.storing import Store
from runner.output_guard.transformer import TransformContext, Transformer
from runner.store.protocol import Scope

__all__ = ["guard_message", "guard_prompt"]

_SHOWN = ("content", "structuredContent")
_HOLDERS = frozenset({"image", "audio", "resource"})
# Of the result of `prompts/get`; whatever else it holds, no client knows.
_BESIDE_MESSAGES = ("_meta", "resultType")


async def guard_message(
    message: Mapping[str, Any],
    *,
    tool: str,
    server: str | None = None,
    config: GuardConfig,
    store: Store | None,
    scope: Scope,
    transformer: Transformer | None = None,
) -> Guarded:
    """Return the result of `tools/call` with what a model reads of it guarded; the value is such a result.

    Args:
        message: The result as on the wire; it is never changed.
        tool: Name of the tool, with or without a prefix.
        server: Name of its server.
        config: The guard's settings.
        store: Where content is kept; None: nowhere.
        scope: Whose it is.
        transformer: The operator's own function; it gets what the tool returned, see
        `runner.contract.payload`.
    """
    shown = {key: message[key] for key in _SHOWN if message.get(key) is not None}
    guarded = await guard(
        shown,
        tool=tool,
        server=server,
        config=config,
        store=store,
        scope=scope,
        transformer=None if transformer is None else _of_payload(transformer),
    )
    if guarded.value is shown:
        return dataclasses.replace(guarded, value=dict(message))
    rest = {key: item for key, item in message.items() if key not in _SHOWN}
    return dataclasses.replace(guarded, value=rest | _lawful(guarded.value, list(shown)))


async def guard_prompt(
    result: Mapping[str, Any],
    *,
    server: str | None = None,
    config: GuardConfig,
    store: Store | None,
    scope: Scope,
) -> Guarded:
    """Return the result of `prompts/get` with its messages and description guarded, lawful again afterwards.

    Args:
        result: The result as on the wire; it is not changed.
        server: Name of its server.
        config: The guard's settings.
        store: Where content is kept; None: nowhere.
        scope: Whose it is.
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
        # Last, so that what comes before it has the places of the messages.
        parts.append(("", _text(description)))
    guarded = await guard_message(
        {"content": [block for _, block in parts]},
        tool="prompts/get",
        server=server,
        config=config,
        store=store,
        scope=scope,
    )
    blocks = [_block(block) for block in guarded.value["content"]]
    made = {key: result[key] for key in _BESIDE_MESSAGES if key in result}
    if len(blocks) != len(parts):
        # All of it together was too long.
        roles = ["user"] * len(blocks)
    else:
        roles = [role for role, _ in parts]
        if isinstance(description, str):
            made["description"] = visible(str(blocks.pop().get("text", "")))
    made["messages"] = [{"role": role, "content": block} for role, block in zip(roles, blocks, strict=False)]
    return dataclasses.replace(guarded, value=made)


def _of_payload(transformer: Transformer) -> Transformer:
    """Return a transformer of whole results for one of what a tool returned."""

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
        # What a transformer made of it, or the reference to all of it.
        structured = {"structuredContent": value} if _SHOWN[1] in shown and isinstance(value, dict) else {}
        said = value if not structured else value.get("summary", "see structuredContent")
        return {"content": [_text(said)]} | structured
    content = value.get("content", [])
    blocks = content if isinstance(content, list) else [content]
    structured = {"structuredContent": value[_SHOWN[1]]} if _SHOWN[1] in value else {}
    return {"content": [_block(block) for block in blocks]} | structured


def _block(block: Any) -> dict[str, Any]:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return _text(block)
    made = block = _lifted(block)
    resource = block.get("resource")
    if block["type"] == "text" and not isinstance(block.get("text"), str):
        return made | {"text": text_of(block.get("text"))}
    if block["type"] in _HOLDERS and ("artifact" in block or "truncated" in block):
        return _link(made)
    if isinstance(resource, dict) and isinstance(resource.get("text"), dict):
        return made | {"resource": resource | {"text": text_of(resource["text"])}}
    return made


def _lifted(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block whose bytes were taken out as a field with the reference as its own."""
    resource = block.get("resource")
    holder, key = (resource, "blob") if isinstance(resource, dict) else (block, "data")
    taken = holder.get(key)
    if block["type"] not in _HOLDERS or not isinstance(taken, dict):
        return block
    rest = {name: item for name, item in {**block, **holder}.items() if name not in (key, "resource")}
    return rest | taken


def _link(block: dict[str, Any]) -> dict[str, Any]:
    if "artifact" not in block:
        return _text(block)
    artifact = block["artifact"]
    link = {
        "type": "resource_link",
        "uri": f"artifact://{artifact['id']}",
        "name": artifact.get("filename") or artifact["id"],
        "description": block["summary"],
        "mimeType": artifact.get("mime_type"),
        "size": artifact.get("size_bytes"),
        "annotations": block.get("annotations"),
    }
    return {key: item for key, item in link.items() if item is not None}


def _text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": text_of(value)}
