"""A stdio server without any library that counts its starts in a file, and asks for roots before any call."""

import json
import sys
from pathlib import Path
from typing import Any

STARTS = Path(sys.argv[1])
KNOWN: dict[str, Any] = {}


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


with STARTS.open("a") as file:
    file.write(".")
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            KNOWN["client"] = message["params"]["clientInfo"]["name"]
            able: dict[str, Any] = {"tools": {}, "logging": {}}
            about = {"name": "counted", "version": "1"}
            version = message["params"]["protocolVersion"]
            send(
                id=message["id"],
                result={"protocolVersion": version, "capabilities": able, "serverInfo": about},
            )
            KNOWN["asks"] = "roots" in message["params"]["capabilities"]
        case "notifications/initialized":
            send(method="notifications/message", params={"level": "warning", "data": "early"})
            if KNOWN["asks"]:
                send(id="roots", method="roots/list")
        case "tools/list":
            tool = {"name": "known", "inputSchema": {"type": "object"}}
            send(id=message["id"], result={"tools": [tool]})
        case "tools/call":
            send(method="notifications/tools/list_changed")
            send(id=message["id"], result={"content": [{"type": "text", "text": json.dumps(KNOWN)}]})
        case None if message["id"] == "roots":
            KNOWN["roots"] = message.get("result") or message.get("error")
            send(method="notifications/message", params={"level": "warning", "data": "roots are known"})
        case _ if "id" in message:
            send(id=message["id"], error={"code": -32601, "message": "Method not found"})
