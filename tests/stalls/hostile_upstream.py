"""An MCP server on stdio, without any library, that answers with what `stall_values` names."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from stall_values import TEXTS, VALUES

_MANY = [
    {"name": f"tool_{n}", "description": "d" * 60, "inputSchema": {"type": "object", "properties": {}}}
    for n in range(5000)
]
_OWN = [
    {"name": name, "inputSchema": {"type": "object", "additionalProperties": True}}
    for name in ("text", "value", "fail", "stderr", "notify", "wrong", "beside", "burst")
]


def answer(method: str, params: dict[str, Any]) -> Any:
    """Return the result of a request."""
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "completions": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
        case "tools/list":
            return {"tools": _OWN + _MANY}
        case "resources/list":
            return {"resources": [{"uri": f"x://{n}", "name": "n" * 60} for n in range(8000)]}
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "x://{a*}{b*}{c*}/x", "name": "t"}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": TEXTS["base64_short_runs"]}]}
        case "prompts/list":
            return {"prompts": [{"name": "p", "arguments": [{"name": "a"}]}]}
        case "prompts/get":
            return {"messages": [{"role": "user", "content": {"type": "text", "text": TEXTS["base64"]}}]}
        case "completion/complete":
            return {"completion": {"values": ["v" * 1000] * 1000}}
        case "tools/call":
            return called(params["name"], params.get("arguments", {}).get("name", "dots"))
    return {}


def called(tool: str, name: str) -> Any:
    """Return the result of a call."""
    if tool == "value":
        return {"content": [], "structuredContent": {"result": VALUES[name]()}}
    if tool == "stderr":
        print(TEXTS[name], file=sys.stderr, flush=True)
    if tool == "notify":
        params = {"level": "info", "data": TEXTS[name]}
        send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
    if tool == "wrong":
        return {"content": VALUES[name]()}
    if tool == "beside":
        return {"content": [], "x": VALUES[name]()}
    if tool == "burst":
        sys.stdout.write(TEXTS[name])
        sys.stdout.flush()
    text = TEXTS[name] if tool in ("text", "fail") else "done"
    return {"content": [{"type": "text", "text": text}], "isError": tool == "fail"}


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answered(request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer to a message, if it is a request."""
    if "id" not in request or "method" not in request:
        return None
    result = answer(request["method"], request.get("params") or {})
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


class Handler(BaseHTTPRequestHandler):
    """The same over HTTP."""

    def do_POST(self) -> None:
        """Answer a message."""
        made = answered(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = b"" if made is None else json.dumps(made).encode()
        self.send_response(202 if made is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if len(sys.argv) > 1:
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
for line in sys.stdin:
    made = answered(json.loads(line))
    if made is not None:
        send(made)
