"""A tool's own result in the message from a node to the host, without duplicated data.

Bytes go through the store: the node has put them there as files, and the host reads those that fit into a
message. Structured content and texts that repeat the checked value are replaced by a reference to it. A node
is trusted no more than a worker: structured content must be an object, or refer to the checked value.

Source: `docs/decisions/0044-fleet-over-redis.md`; MCP, `CallToolResult`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from runner.artifacts.accept import ArtifactFile, Processed
from runner.contract.error_messages import invalid_result
from runner.contract.loose_json import list_of, mapping_of
from runner.contract.models import FILE_LISTS
from runner.steps.file_references import FileReferences
from runner.steps.request import question_of

__all__ = ["InValue", "restored", "shortened"]

_Named = Literal["results", "value"]


class InValue(BaseModel):
    """Parts of a tool's own result that the value contains, and that are not sent with it.

    Attributes:
        structured: What its structured content is.
        is_wrapped: Whether it is that as the only item, `result`.
        texts: Indexes of content blocks whose text is what.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    structured: _Named | None = None
    is_wrapped: bool = False
    texts: dict[str, _Named] = Field(default_factory=dict)


def shortened(wire: Mapping[str, Any], processed: Processed) -> tuple[dict[str, Any], InValue]:
    """Return a tool's own result as a node sends it, and the parts left out since the value contains them.

    Args:
        wire: The result.
        processed: The same result after the contract.
    """
    named = _named(processed.value)
    named_files = (*processed.files, *processed.deferred)
    references = FileReferences.of((file.origin, file.uri) for file in named_files if file.is_content)
    sent, in_value = dict(wire), InValue()
    if "structuredContent" in wire:
        structured, wrapped = wire["structuredContent"], None
        if isinstance(structured, dict) and structured.keys() == {"result"}:
            wrapped = _name_of(structured["result"], named)
        found = wrapped or _name_of(structured, named)
        if found is None:
            sent["structuredContent"] = references.value(structured, contents=True)
        else:
            del sent["structuredContent"]
            in_value = in_value.model_copy(update={"structured": found, "is_wrapped": wrapped is not None})
    if "content" in wire:
        written = {_text(item): name for name, item in named.items()}
        texts: dict[str, _Named] = {}
        blocks = []
        for index, block in enumerate(list_of(wire["content"])):
            if isinstance(block, dict) and isinstance(block.get("text"), str) and block["text"] in written:
                texts[str(index)] = written[block["text"]]
                blocks.append({**block, "text": ""})
            else:
                blocks.append(_without_bytes(block, references))
        sent["content"] = blocks
        in_value = in_value.model_copy(update={"texts": texts})
    return sent, in_value


async def restored(
    wire: Mapping[str, Any],
    in_value: InValue,
    value: Mapping[str, Any],
    files: Sequence[ArtifactFile],
    *,
    read: Callable[[ArtifactFile], Awaitable[str]],
    inlined: Mapping[str, str],
    message_max_bytes: int,
) -> dict[str, Any]:
    """Return a tool's own result as the tool gave it, as far as a message takes it.

    Args:
        wire: The result as the node sent it.
        in_value: Parts that the node left out, since the value contains them.
        value: The checked value.
        files: The artifacts, as the store has them.
        read: Returns a file as base64.
        inlined: Files that go inside the message anyway, as base64, by their URI.
        message_max_bytes: Longest message for a client.

    Raises:
        CallError: `E_INVALID_RESULT`: a node may not send that.
    """
    if question_of(wire) is not None:
        raise invalid_result("the worker node", "it names a question a result")
    found, named = dict(wire), _named(value)
    if in_value.structured is not None:
        item = named[in_value.structured]
        found["structuredContent"] = {"result": item} if in_value.is_wrapped else item
    elif "structuredContent" in wire:
        if not isinstance(wire["structuredContent"], dict):
            raise invalid_result("the worker node", "its structured content is not an object")
        found["structuredContent"] = FileReferences(inlined).value(wire["structuredContent"], contents=True)
    if "content" not in wire:
        return found
    blocks = list_of(wire["content"])
    bytes_of = await _bytes(
        blocks, {file.block: file for file in files if file.block is not None}, read, message_max_bytes
    )
    found["content"] = [
        _with_bytes(block, bytes_of[index])
        if index in bytes_of
        else {**mapping_of(block), "text": _text(named[in_value.texts[str(index)]])}
        if str(index) in in_value.texts
        else block
        for index, block in enumerate(blocks)
    ]
    return found


async def _bytes(
    blocks: Sequence[Any],
    by_block: Mapping[int, ArtifactFile],
    read: Callable[[ArtifactFile], Awaitable[str]],
    message_max_bytes: int,
) -> dict[int, str]:
    """Return the bytes of the blocks that are files, as base64, as long as they fit into a message.

    A file that does not fit is replaced by filler longer than any message, so that its client gets a link, as
    after a call on one machine. Images and sounds come first, since links replace them last.
    """
    found: dict[int, str] = {}
    left = message_max_bytes
    for index in sorted(by_block, key=lambda at: (_is_embedded(blocks, at), at)):
        file = by_block[index]
        if not 0 <= index < len(blocks):
            continue
        length = (file.size + 2) // 3 * 4
        found[index] = await read(file) if length <= left else "A" * (message_max_bytes + 4)
        left -= length
    return found


def _named(value: Mapping[str, Any]) -> dict[_Named, Any]:
    """Return the possible values of structured content and texts: the results, or the value without files."""
    whole = {key: item for key, item in value.items() if key not in FILE_LISTS}
    return {"results": value.get("results"), "value": whole}


def _name_of(item: Any, named: Mapping[_Named, Any]) -> _Named | None:
    # By their texts: of numbers that are equal, 1 and 1.0 or true are written in different ways.
    return next((name for name, one in named.items() if one == item and _text(one) == _text(item)), None)


def _text(item: Any) -> str:
    """Return an item as FastMCP writes it into a text."""
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, separators=(",", ":"))


def _is_embedded(blocks: Sequence[Any], index: int) -> bool:
    return 0 <= index < len(blocks) and mapping_of(blocks[index]).get("type") == "resource"


def _without_bytes(block: Any, references: FileReferences) -> Any:
    if not isinstance(block, dict):
        return block
    if isinstance(block.get("text"), str):
        return {**block, "text": references.text(block["text"])}
    return _with_bytes(block, "")


def _with_bytes(block: Any, content: str) -> Any:
    """Return a content block with these bytes, where it is one that has any."""
    kind, resource = mapping_of(block).get("type"), mapping_of(mapping_of(block).get("resource"))
    if kind in ("image", "audio"):
        return {**block, "data": content}
    if kind == "resource" and "blob" in resource:
        return {**block, "resource": {**resource, "blob": content}}
    return block
