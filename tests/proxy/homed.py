"""A server for any Python, of the handshake era only: it copies a file of its user, or waits in the home."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"username": {"type": "string"}, "filename": {"type": "string"}},
    "required": ["username", "filename"],
}
WAITING: dict[str, Any] = {"type": "object", "properties": {"username": {"type": "string"}}}
TOOLS = [
    *({"name": name, "description": "Copy a file.", "inputSchema": SCHEMA} for name in ("copy", "ask")),
    {"name": "wait", "description": "Wait in the home.", "inputSchema": {"type": "object"}},
    {"name": "wait_for", "description": "Wait in a user's home.", "inputSchema": WAITING},
]


def copy(username: str, filename: str) -> dict[str, Any]:
    made = Path(f"/tmp/{username}/copy.txt")
    made.write_text(Path(filename).read_text())
    temporary = Path(os.environ["TMPDIR"]).is_dir()
    facts = {"username": username, "home": os.environ["HOME"], "temporary": temporary}
    return {"results": facts, "artifacts": [{"name": made.name, "path": str(made), "mime": "text/plain"}]}


def wait() -> dict[str, Any]:
    """Write to the home that the call has begun, and wait there until it may end."""
    home = Path(os.environ["HOME"])
    (home / "begun").touch()
    while not (home / "go").exists():
        time.sleep(0.01)
    return {"results": "waited"}


def ask() -> None:
    """Elicit from the client in the middle of a call, and wait for its answer."""
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    params = {"message": "Your colour?", "requestedSchema": schema}
    print(
        json.dumps({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": params}),
        flush=True,
    )
    while json.loads(sys.stdin.readline()).get("id") != "q1":
        pass


def answer(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params") or {}
    if message["method"] == "initialize":
        about = {"name": "homed", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    if message["method"] == "tools/list":
        return {"tools": TOOLS}
    if message["method"] == "tools/call":
        if params["name"] == "ask":
            ask()
        waits = params["name"].startswith("wait")
        reply = json.dumps(wait() if waits else copy(**params["arguments"]))
        return {"content": [{"type": "text", "text": reply}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        known = ("initialize", "tools/list", "tools/call", "ping")
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] in known:
            reply["result"] = answer(request)
        else:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(reply), flush=True)
