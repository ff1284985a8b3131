"""A server for any Python, of the handshake era only: it copies a file of its user, perhaps after asking."""

import json
import os
import sys
from pathlib import Path
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"username": {"type": "string"}, "filename": {"type": "string"}},
    "required": ["username", "filename"],
}
TOOLS = [{"name": name, "description": "Copy a file.", "inputSchema": SCHEMA} for name in ("copy", "ask")]


def copy(username: str, filename: str) -> dict[str, Any]:
    made = Path(f"/tmp/{username}/copy.txt")
    made.write_text(Path(filename).read_text())
    temporary = Path(os.environ["TMPDIR"]).is_dir()
    facts = {"username": username, "home": os.environ["HOME"], "temporary": temporary}
    return {"results": facts, "artifacts": [{"name": made.name, "path": str(made), "mime": "text/plain"}]}


def ask() -> None:
    """Ask the client in the middle of a call, and wait for its answer."""
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
        said = json.dumps(copy(**params["arguments"]))
        return {"content": [{"type": "text", "text": said}]}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked and "method" in asked:
        known = ("initialize", "tools/list", "tools/call", "ping")
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if asked["method"] in known:
            said["result"] = answer(asked)
        else:
            said["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(said), flush=True)
