"""Servers' answers in a form for clients: faults are repaired, and texts outside the output guard bounded.

A library that validates an answer rejects all of it for one faulty member. Here faulty optional members are
left out, and missing ones are filled in where only one value makes sense. A content block that is still
faulty becomes text. A list item that cannot be repaired is left out and reported.

The guard covers the parts of a result that a model reads. JSON-RPC errors, task messages and unknown keys
bypass it, and clients show those to models, too. They lose our keys and tokens, and have a bounded length.

Source: MCP specification 2025-11-25 and 2026-07-28, "Tools", "Prompts" and "Resources"; requirements S0-19,
S0-23, S2-4; `docs/proxy.md`, "What passes, and what changes".
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from runner.files.download_links import without_tokens
from runner.formats.json_walks import map_texts
from runner.formats.magic import identify_base64
from runner.system.turns import in_turns

__all__ = [
    "LISTS",
    "MOST_CHARS",
    "Faults",
    "legible_error",
    "legible_message",
    "repaired",
    "without_our_words",
]

log = logging.getLogger(__name__)

MOST_CHARS = 8192
"""Longest text that is forwarded without the output guard, in characters."""

_MOST_VALUES = 4096
_OURS = "toolcell/"
# A client returns these unchanged, or puts their questions to its model.
_KEPT = frozenset({"inputRequests", "nextCursor", "requestState"})

LISTS: Mapping[str, tuple[str, type[BaseModel]]] = {
    "prompts/list": ("prompts", mcp_types.Prompt),
    "resources/list": ("resources", mcp_types.Resource),
    "resources/templates/list": ("resourceTemplates", mcp_types.ResourceTemplate),
    "tools/list": ("tools", mcp_types.Tool),
}
"""The key of the items of each list, and their model."""
_BLOCKS: Mapping[str, type[BaseModel]] = {
    "audio": mcp_types.AudioContent,
    "image": mcp_types.ImageContent,
    "resource": mcp_types.EmbeddedResource,
    "resource_link": mcp_types.ResourceLink,
    "text": mcp_types.TextContent,
}
_RESULT_TYPES = ("complete", "input_required", "task")
_OF_RESULTS = ("_meta", "content", "isError", "resultType", "structuredContent", "task")
_FALSE = ("", "0", "false", "no")
_LACKING = "it lacks members"
# Pydantic creates an error for each faulty item.
_MOST_MEMBERS = 1000
# Each later step processes all content blocks of a result within one turn of the event loop.
_MOST_BLOCKS = 4096
_MOST_FAULTS = 100


@dataclass(slots=True)
class Faults:
    """Faults of one server's answers, each logged once, since lists are read repeatedly.

    Attributes:
        server: Name of the server.
        known: Whether the item was left out, by the item's name, or the method, and the problem.
    """

    server: str
    known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def add(self, item: str, problem: str, *, is_left_out: bool = False) -> None:
        """Log a fault of an item, unless it is known."""
        if (item, problem) not in self.known and len(self.known) < _MOST_FAULTS:
            self.known[item, problem] = is_left_out
            facts = {"server": self.server, "item": item, "problem": problem}
            log.warning("invalid item left out" if is_left_out else "invalid item repaired", extra=facts)


async def repaired(
    method: str, params: Mapping[str, Any], result: dict[str, Any], faults: Faults, *, has_sessions: bool
) -> dict[str, Any]:
    """Return the repaired result of a request.

    Args:
        method: The method of the request.
        params: Its params.
        result: The original result, which is not modified.
        faults: Receives the faults found.
        has_sessions: Whether the client is of the handshake era, in which structured content and schemas
            are objects.

    Raises:
        ValueError: It cannot be repaired.
    """
    made = dict(result)
    if "_meta" in made and not isinstance(made["_meta"], Mapping):
        del made["_meta"]
        faults.add(method, "_meta is not an object")
    if "resultType" in made and made["resultType"] not in _RESULT_TYPES:
        del made["resultType"]
        faults.add(method, "resultType is unknown")
    if method == "tools/call" and ("task" in made or made.get("resultType") == "task"):
        task = made.get("task", made)
        if isinstance(task, Mapping) and isinstance(task.get("taskId"), str):
            return made
        if "content" not in made:
            raise ValueError("it made a task of the call, and did not name it")
        made = {key: item for key, item in made.items() if key not in ("task", "resultType")}
        faults.add(method, "its task has no name")
    if made.get("resultType") in ("input_required", "task"):
        return made
    if method in LISTS:
        key, model = LISTS[method]
        made[key] = await _items(made.get(key), model, faults, has_sessions=has_sessions)
    elif method in ("tools/call", "tasks/result"):
        made = await _call(str(params.get("name", method)), made, faults, has_sessions=has_sessions)
    elif method.startswith("tasks/") and isinstance(made.get("result"), Mapping):
        made["result"] = await _call(method, dict(made["result"]), faults, has_sessions=has_sessions)
    elif method == "prompts/get":
        made["messages"] = await _messages(made.get("messages"), faults)
    elif method == "resources/read":
        contents = list[Any]()
        async for part in in_turns(_list(made.get("contents"))):
            contents.append(_content(part, str(params.get("uri", "")), faults))
        made["contents"] = contents
    return made


async def _items(items: Any, model: type[BaseModel], faults: Faults, *, has_sessions: bool) -> list[Any]:
    """Return the items of a list that clients can read."""
    fitting, names = list[Any](), set[str]()
    async for each in in_turns(_list(items)):
        item = _item(each, model, faults, has_sessions=has_sessions)
        if item is not None and model is mcp_types.Tool and item["name"] in names:
            # Model APIs reject all tools for one duplicate name.
            faults.add(_named(item["name"]), "it is listed twice", is_left_out=True)
        elif item is not None:
            names.add(item["name"])
            fitting.append(item)
    return fitting


async def _call(name: str, made: dict[str, Any], faults: Faults, *, has_sessions: bool) -> dict[str, Any]:
    """Return the result of a call with content that clients can read."""
    blocks, content = list[Any](), _list(made.get("content"))
    if len(content) > _MOST_BLOCKS:
        content = [*content[:_MOST_BLOCKS], _rest(content[_MOST_BLOCKS:], name, faults)]
    async for block in in_turns(content):
        blocks.append(_block(block, name, faults))
    structured = made.get("structuredContent")
    bare = {key: item for key, item in made.items() if key not in _OF_RESULTS}
    if structured is None:
        made.pop("structuredContent", None)
        if bare and "content" not in made:
            # A server written without an SDK may return the bare value.
            blocks.append(_text(bare))
            faults.add(name, "it has no content")
    elif not blocks:
        # As the protocol requires of servers, for clients that read only text.
        blocks.append(_text(structured))
    if structured is not None and has_sessions and not isinstance(structured, Mapping):
        del made["structuredContent"]
        faults.add(name, "structuredContent is not an object")
    if "isError" in made and not isinstance(made["isError"], bool):
        faults.add(name, "isError is not a boolean")
        made["isError"] = str(made["isError"] or "").strip().lower() not in _FALSE
    return {**made, "content": blocks}


async def _messages(messages: Any, faults: Faults) -> list[Any]:
    """Return the messages of a prompt, each with a role and one content block."""
    parts = list[tuple[Any, Any]]()
    async for message in in_turns(_list(messages)):
        content = message.get("content") if isinstance(message, Mapping) else message
        parts += [(message, block) for block in (content if isinstance(content, list) else [content])]
    if len(parts) > _MOST_BLOCKS:
        parts[_MOST_BLOCKS:] = [
            ({}, _rest([block for _, block in parts[_MOST_BLOCKS:]], "prompts/get", faults))
        ]
    made = list[Any]()
    async for message, block in in_turns(parts):
        members = message if isinstance(message, Mapping) else {}
        role = members["role"] if members.get("role") in ("user", "assistant") else "user"
        made.append({**members, "role": role, "content": _block(block, "prompts/get", faults)})
    return made


def _rest(blocks: list[Any], name: str, faults: Faults) -> dict[str, Any]:
    """Return the blocks above the limit as one text block."""
    faults.add(name, f"it has more than {_MOST_BLOCKS} content blocks")
    return _text(blocks)


def _block(block: Any, name: str, faults: Faults) -> Mapping[str, Any]:
    """Return a content block; a malformed one becomes text."""
    if not isinstance(block, Mapping):
        faults.add(name, "a content block is not an object")
        return _text(block)
    kind = block.get("type", "text" if isinstance(block.get("text"), str) else None)
    model = _BLOCKS.get(kind) if isinstance(kind, str) else None
    filled: dict[str, Any] = {**block, "type": kind}
    if kind == "resource_link" and not isinstance(block.get("name"), str):
        filled["name"] = str(block.get("uri")).rstrip("/").rpartition("/")[2] or str(block.get("uri"))
    elif kind in ("image", "audio") and not isinstance(block.get("mimeType"), str):
        found = identify_base64(block.get("data"))
        filled["mimeType"] = found.mime if found else "application/octet-stream"
    elif kind == "resource" and isinstance(block.get("resource"), Mapping):
        filled["resource"] = {key: item for key, item in block["resource"].items() if item is not None}
    if model is None:
        faults.add(name, "a content block is of an unknown type")
        return _text(block)
    fitting, problem = _fitting(filled, model)
    if fitting == block:
        return block
    faults.add(name, f"a content block of type {kind}: {problem or _LACKING}")
    if fitting is not None:
        return fitting
    holder = block if kind == "text" else block.get("resource")
    text = holder.get("text") if isinstance(holder, Mapping) else None
    return _text(block if text is None else text)


def _content(part: Any, uri: str, faults: Faults) -> Mapping[str, Any]:
    """Return one of the contents of a resource; a malformed one becomes text."""
    filled = {"uri": uri, **part} if isinstance(part, Mapping) else {"uri": uri, "text": part}
    model = mcp_types.BlobResourceContents if "blob" in filled else mcp_types.TextResourceContents
    fitting, problem = _fitting(filled, model)
    if fitting != part:
        faults.add(uri, problem or _LACKING)
    return fitting or {"uri": uri, "text": _text(part)["text"]}


def _item(
    item: Any, model: type[BaseModel], faults: Faults, *, has_sessions: bool
) -> Mapping[str, Any] | None:
    """Return an item of a list; None if it cannot be repaired."""
    if not isinstance(item, Mapping):
        faults.add(_named(item), "it is not an object", is_left_out=True)
        return None
    name, filled, problems = _named(item.get("name", item.get("uri"))), dict(item), list[str]()
    if model is mcp_types.Tool:
        schema = filled.get("inputSchema")
        kind = schema.get("type", "object") if isinstance(schema, Mapping) else "object"
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            faults.add(name, f"its inputSchema is of type {_named(kind)}", is_left_out=True)
            return None
        if not isinstance(schema, Mapping) or schema.get("type") != "object":
            problems.append("its inputSchema is not of type object")
            filled["inputSchema"] = {**(schema if isinstance(schema, Mapping) else {}), "type": "object"}
        output = filled.get("outputSchema")
        if has_sessions and isinstance(output, Mapping) and output.get("type") != "object":
            problems.append("its outputSchema is not of type object")
            del filled["outputSchema"]
    elif isinstance(filled.get("uri"), str) and not isinstance(filled.get("name"), str):
        problems.append("it has no name")
        filled["name"] = filled["uri"]
    fitting, problem = _fitting(filled, model)
    if fitting is not None and not fitting.get("name"):
        fitting, problem = None, "its name is empty"
    problems += filter(None, [problem])
    if problems:
        faults.add(name, "; ".join(problems), is_left_out=fitting is None)
    return fitting


def _fitting(value: Mapping[str, Any], model: type[BaseModel]) -> tuple[dict[str, Any] | None, str]:
    """Return an object without faulty optional members, and its faults; None if required ones are faulty."""
    made = {key: item for key, item in value.items() if item is not None}
    long = {key for key in ("arguments", "icons") if len(_list(made.get(key))) > _MOST_MEMBERS}
    annotations = made.get("annotations")
    if isinstance(annotations, Mapping) and len(_list(annotations.get("audience"))) > _MOST_MEMBERS:
        long.add("annotations")
    problems = [f"{key} has more than {_MOST_MEMBERS} items" for key in sorted(long)]
    made = {key: item for key, item in made.items() if key not in long}
    try:
        model.model_validate(made, by_name=False)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        problems += [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults[:3]]
        faulty = {str(each["loc"][0]) for each in faults if each["loc"]}
        required = {field.alias or key for key, field in model.model_fields.items() if field.is_required()}
        if not faulty or faulty & required:
            return None, "; ".join(problems)[:300]
        made = {key: item for key, item in made.items() if key not in faulty}
    return made, "; ".join(problems)[:300]


def _list(value: Any) -> list[Any]:
    """Return a value as a list: None becomes an empty list, any other value a list of one item."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "text", "text": text}


def _named(value: Any) -> str:
    if isinstance(value, str):
        return value[:100]
    return "None" if value is None else type(value).__name__


def without_our_words(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server's message, or a part of one, without `_meta` keys that are reserved for the proxy."""
    meta = message.get("_meta")
    if not isinstance(meta, Mapping):
        return dict(message)
    return {**message, "_meta": {key: item for key, item in meta.items() if not key.startswith(_OURS)}}


def _clip(text: str) -> str:
    """Return a text, shortened if it is too long for clients to show."""
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]}… ({len(text) - MOST_CHARS} characters left out)"


def legible_message(message: Mapping[str, Any], *results: str) -> dict[str, Any]:
    """Return a server's message that bypasses the output guard, in the form for a client.

    Args:
        message: The message.
        results: Keys whose values are not changed, since other code checks them.
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
    """Return a value without tokens and with shortened texts; a sentence in place of one with many parts."""
    count, left = 0, [value]
    while left:
        item = left.pop()
        members = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        count += len(members)
        if count > _MOST_VALUES:
            return f"left out: it has more than {_MOST_VALUES} values"
        left.extend(members)
    return map_texts(without_tokens(value), _clip)
