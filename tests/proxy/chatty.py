"""A stdio server without any library that says far more than anybody asked for before it answers."""

import json
import sys
from collections.abc import Callable
from typing import Any

_FILLER = "x" * 200


def say(*messages: dict[str, Any]) -> None:
    sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
    sys.stdout.flush()


def log(number: int, _token: Any) -> dict[str, Any]:
    data = {"msg": f"message {number} {_FILLER}", "extra": None}
    return {"method": "notifications/message", "params": {"level": "info", "data": data}}


def progress(number: int, token: Any) -> dict[str, Any]:
    params = {"progressToken": token, "progress": number, "message": f"step {number}"}
    return {"method": "notifications/progress", "params": params}


def updated(number: int, _token: Any) -> dict[str, Any]:
    return {"method": "notifications/resources/updated", "params": {"uri": f"note://{number % 7}"}}


def changed(_number: int, _token: Any) -> dict[str, Any]:
    return {"method": "notifications/tools/list_changed"}


def nested(levels: int) -> Any:
    value: Any = "inmost"
    for _ in range(levels):
        value = [value]
    return value


def news(number: int, _token: Any) -> dict[str, Any]:
    deep = {"elicitationId": "e2", "more": nested(150)}
    all_params: list[Any] = [{"elicitationId": [1]}, {}, deep, {"elicitationId": "e1"}]
    if number >= len(all_params):
        return {"method": "notifications/tasks/status", "params": {"taskId": [number], "status": 7}}
    return {"method": "notifications/elicitation/complete", "params": all_params[number]}


def deep(number: int, _token: Any) -> dict[str, Any]:
    if number:
        return {"method": "notifications/message", "params": {"level": "info", "data": nested(150)}}
    params = {"message": "?", "requestedSchema": {"type": "object", "properties": nested(150)}}
    return {"id": "deep", "method": "elicitation/create", "params": params}


def odd(number: int, _token: Any) -> dict[str, Any]:
    all_params: list[Any] = [
        {"level": ["info"], "data": "a"},
        {"level": {"a": 1}, "data": "b"},
        {"level": "info", "logger": 7, "data": {"msg": "kept", "extra": None}},
        {"level": "info", "logger": {"a": []}},
        {},
        [],
    ]
    if number >= len(all_params):
        return {"method": "toolcell/dropped", "params": {"count": "many"} if number % 2 else {"count": 9}}
    return {"method": "notifications/message", "params": all_params[number]}


def question(number: int, _token: Any) -> dict[str, Any]:
    params = {"message": _FILLER, "requestedSchema": {"type": "object", "properties": {}}}
    return {"id": f"q{number}", "method": "elicitation/create", "params": params}


FLOODS: dict[str, Callable[[int, Any], dict[str, Any]]] = {
    "log": log,
    "progress": progress,
    "updated": updated,
    "changed": changed,
    "odd": odd,
    "news": news,
    "deep": deep,
    "question": question,
}


# Raw lines that are not messages.
LINES = {"blank": "\n", "words": "1\n"}


def flooded(arguments: dict[str, Any], token: Any) -> dict[str, Any]:
    """Return what is asked for, or answer with it."""
    kind, count = arguments["kind"], arguments["count"]
    if kind == "values":
        return {"content": [], "structuredContent": {"a": [1] * count}}
    if kind == "long":
        return text_of("x" * count)
    if kind in LINES:
        sys.stdout.write(LINES[kind] * count)
        sys.stdout.flush()
    else:
        for number in range(count):
            say(FLOODS[kind](number, token))
    return text_of(str(count))


def text_of(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            able = {"tools": {"listChanged": True}, "logging": {}, "resources": {"subscribe": True}}
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": able,
                "serverInfo": {"name": "chatty", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("flood", "add")]}
        case "tools/call" if params["name"] == "add":
            return text_of(str(params["arguments"]["a"] + params["arguments"]["b"]))
        case "tools/call":
            return flooded(params["arguments"], params.get("_meta", {}).get("progressToken"))
        case _:
            return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        say({"id": request["id"], "result": answer(request["method"], request.get("params", {}))})
