"""A server over stdio that sends invalid messages, requests and answers."""

import json
import sys
from typing import Any

DEEP = "[" * 20_000 + "]" * 20_000
NO_MESSAGES = ["hello", "[]", '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"a": DEEP}}']
QUESTIONS = ["elicitation/create", "sampling/createMessage", "roots/list"]
TOOLS = ["echo", "no_messages", "odd_questions", "odd_answer"]


def say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def read_message() -> dict[str, Any]:
    """Return the next message; the end of them is the end."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    message: dict[str, Any] = json.loads(line)
    return message


def question(number: int, method: str) -> dict[str, Any]:
    """Send a request with an invalid `_meta` to the client; return its answer."""
    say(id=f"q{number}", method=method, params={"_meta": 5})
    while True:
        message = read_message()
        if message.get("id") == f"q{number}":
            return message


def text_of(tool: str, arguments: dict[str, Any]) -> str:
    if tool == "no_messages":
        for line in NO_MESSAGES:
            print(line.replace("DEEP", DEEP), flush=True)
        return "fine"
    if tool == "odd_questions":
        return json.dumps([question(number, method) for number, method in enumerate(QUESTIONS)])
    return str(arguments.get("value"))


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        able: dict[str, dict[str, object]] = {"tools": {}, "resources": {}, "prompts": {}}
        about = {"name": "odd", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": able, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if method == "tools/call" and params["name"] == "odd_answer":
        return {"content": [5], "_meta": 5}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": text_of(params["name"], params.get("arguments") or {})}]}
    return {method.partition("/")[0]: []}


while True:
    request = read_message()
    if "id" in request and "method" in request:
        say(id=request["id"], result=result_of(request["method"], request.get("params") or {}))
