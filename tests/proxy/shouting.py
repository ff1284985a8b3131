"""A stdio server without any library that writes to its standard error what it is asked to, then answers."""

import base64
import json
import os
import sys
from typing import Any


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def shout(piece: bytes, times: int) -> None:
    left = memoryview(piece * times)
    while left:
        left = left[os.write(2, left) :]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            about = {"name": "shouting", "version": "1"}
            version = params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [{"name": "shout", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            arguments = params["arguments"]
            shout(base64.b64decode(arguments["piece"]), arguments["times"])
            return {"content": [{"type": "text", "text": "done"}]}
        case _:
            return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        say(id=request["id"], result=answer(request["method"], request.get("params", {})))
