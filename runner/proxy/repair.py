"""Faults in answers of servers, repaired so that the libraries of clients can read the rest.

A library that checks an answer refuses all of it for one faulty member. Here members that may be absent are
left out, missing ones are filled in where only one value makes sense, and a content block that stays faulty
becomes text. An item of a list that cannot be repaired is left out, and named.

Source: MCP specification 2025-11-25 and 2026-07-28, "Tools", "Prompts" and "Resources".
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from runner.formats.json_walks import least_chars
from runner.formats.magic import identify_base64
from runner.system.turns import in_turns

__all__ = ["LISTS", "Fault", "introduction", "repaired"]

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
# Each item that is faulty costs an error of pydantic.
_MOST_MEMBERS = 1000
_MOST_INTRODUCTION = 64 * 1024
# Each step behind this one goes through the content blocks of a result, within one turn of the event loop.
_MOST_BLOCKS = 4096


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of an answer.

    Attributes:
        item: What is faulty: the name of a tool, or the method.
        problem: The fault.
        is_left_out: Whether the item is left out for it.
    """

    item: str
    problem: str
    is_left_out: bool = False


async def repaired(
    method: str, params: Mapping[str, Any], result: dict[str, Any], *, has_sessions: bool
) -> tuple[dict[str, Any], Collection[Fault]]:
    """Return the result of a request without its faults, and these.

    Args:
        method: The method of the request.
        params: Its params.
        result: The result as it came; it is not changed.
        has_sessions: Whether the client is of the handshake era, in which structured content and schemas
            are objects.

    Raises:
        ValueError: It cannot be repaired.
    """
    faults = dict[Fault, None]()
    made = dict(result)
    if "_meta" in made and not isinstance(made["_meta"], Mapping):
        del made["_meta"]
        faults.setdefault(Fault(method, "_meta is not an object"))
    if "resultType" in made and made["resultType"] not in _RESULT_TYPES:
        del made["resultType"]
        faults.setdefault(Fault(method, "resultType is unknown"))
    if method == "tools/call" and ("task" in made or made.get("resultType") == "task"):
        task = made.get("task", made)
        if isinstance(task, Mapping) and isinstance(task.get("taskId"), str):
            return made, faults
        if "content" not in made:
            raise ValueError("it made a task of the call, and did not name it")
        made = {key: item for key, item in made.items() if key not in ("task", "resultType")}
        faults.setdefault(Fault(method, "its task has no name"))
    if made.get("resultType") in ("input_required", "task"):
        return made, faults
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
    return made, faults


async def _items(
    items: Any, model: type[BaseModel], faults: dict[Fault, None], *, has_sessions: bool
) -> list[Any]:
    """Return the items of a list that clients can read."""
    fitting, names = list[Any](), set[str]()
    async for each in in_turns(_list(items)):
        item = _item(each, model, faults, has_sessions=has_sessions)
        if item is not None and model is mcp_types.Tool and item["name"] in names:
            # The interfaces of models refuse all tools for one name that stands twice.
            faults.setdefault(Fault(_named(item["name"]), "it is listed twice", is_left_out=True))
        elif item is not None:
            names.add(item["name"])
            fitting.append(item)
    return fitting


def introduction(result: Mapping[str, Any]) -> tuple[dict[str, Any], Collection[Fault]]:
    """Return the result of `initialize` without its faults, and these.

    A server that names no version of the protocol is taken to speak the oldest. Nothing depends on its name
    and version, nor on its capabilities: lists are requested from every server.
    """
    made = {key: item for key, item in result.items() if item is not None}
    if least_chars(made, _MOST_INTRODUCTION) > _MOST_INTRODUCTION:
        # Pydantic collects every fault that it finds.
        return {**made, "capabilities": {}}, [Fault("initialize", "it is too long to look for faults in it")]
    try:
        mcp_types.InitializeResult.model_validate(made, by_name=False)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:3]
        problem = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults)
    else:
        return made, ()
    able, info = made.get("capabilities"), made.get("serverInfo")
    parts = able if isinstance(able, Mapping) else {key: {} for key in _list(able) if isinstance(key, str)}
    # An empty object is a capability, and `false` is none.
    objects = {
        key: part if isinstance(part, Mapping) else {} for key, part in parts.items() if part is not False
    }
    about = dict(info) if isinstance(info, Mapping) else {}
    about |= {key: str(about.get(key) or "unknown") for key in ("name", "version")}
    text = "\n".join(part for part in _list(made.pop("instructions", None)) if isinstance(part, str))
    made["protocolVersion"] = str(made.get("protocolVersion") or HANDSHAKE_PROTOCOL_VERSIONS[0])
    made["capabilities"], _ = _fitting(objects, mcp_types.ServerCapabilities)
    made["serverInfo"], _ = _fitting(about, mcp_types.Implementation)
    return made | ({"instructions": text} if text else {}), [Fault("initialize", problem[:300])]


async def _call(
    name: str, made: dict[str, Any], faults: dict[Fault, None], *, has_sessions: bool
) -> dict[str, Any]:
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
            # A server without a library may answer with the value itself.
            blocks.append(_text(bare))
            faults.setdefault(Fault(name, "it has no content"))
    elif not blocks:
        # As the protocol asks of servers, for clients that read texts only.
        blocks.append(_text(structured))
    if structured is not None and has_sessions and not isinstance(structured, Mapping):
        del made["structuredContent"]
        faults.setdefault(Fault(name, "structuredContent is not an object"))
    if "isError" in made and not isinstance(made["isError"], bool):
        flag = made.pop("isError")
        faults.setdefault(Fault(name, "isError is not a boolean"))
        if flag is not None:
            made["isError"] = str(flag).strip().lower() not in _FALSE
    return {**made, "content": blocks}


async def _messages(messages: Any, faults: dict[Fault, None]) -> list[Any]:
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


def _rest(blocks: list[Any], name: str, faults: dict[Fault, None]) -> dict[str, Any]:
    """Return as one block what stands behind the most blocks that a result may have."""
    faults.setdefault(Fault(name, f"it has more than {_MOST_BLOCKS} content blocks"))
    return _text(blocks)


def _block(block: Any, name: str, faults: dict[Fault, None]) -> Mapping[str, Any]:
    """Return a content block; a malformed one becomes text."""
    if not isinstance(block, Mapping):
        faults.setdefault(Fault(name, "a content block is not an object"))
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
        faults.setdefault(Fault(name, "a content block is of an unknown type"))
        return _text(block)
    fitting, problem = _fitting(filled, model)
    if fitting == block:
        return block
    faults.setdefault(Fault(name, f"a content block of type {kind}: {problem or _LACKING}"))
    if fitting is not None:
        return fitting
    holder = block if kind == "text" else block.get("resource")
    text = holder.get("text") if isinstance(holder, Mapping) else None
    return _text(block if text is None else text)


def _content(part: Any, uri: str, faults: dict[Fault, None]) -> Mapping[str, Any]:
    """Return one of the contents of a resource; a malformed one becomes text."""
    filled = {"uri": uri, **part} if isinstance(part, Mapping) else {"uri": uri, "text": part}
    model = mcp_types.BlobResourceContents if "blob" in filled else mcp_types.TextResourceContents
    fitting, problem = _fitting(filled, model)
    if fitting != part:
        faults.setdefault(Fault(uri, problem or _LACKING))
    return fitting or {"uri": uri, "text": _text(part)["text"]}


def _item(
    item: Any, model: type[BaseModel], faults: dict[Fault, None], *, has_sessions: bool
) -> Mapping[str, Any] | None:
    """Return an item of a list; None if it cannot be repaired."""
    if not isinstance(item, Mapping):
        faults.setdefault(Fault(_named(item), "it is not an object", is_left_out=True))
        return None
    name, filled, problems = _named(item.get("name", item.get("uri"))), dict(item), list[str]()
    if model is mcp_types.Tool:
        schema = filled.get("inputSchema")
        kind = schema.get("type", "object") if isinstance(schema, Mapping) else "object"
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            faults.setdefault(Fault(name, f"its inputSchema is of type {_named(kind)}", is_left_out=True))
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
        faults.setdefault(Fault(name, "; ".join(problems), is_left_out=fitting is None))
    return fitting


def _fitting(value: Mapping[str, Any], model: type[BaseModel]) -> tuple[dict[str, Any] | None, str]:
    """Return an object without faulty members that may be absent, and its faults; None if others are."""
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
    """Return a value as a list: nothing is an empty one, and what is not in a list is one item."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "text", "text": text}


def _named(value: Any) -> str:
    if isinstance(value, str):
        return value[:100]
    return "None" if value is None else type(value).__name__
