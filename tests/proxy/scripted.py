"""A stdio server of the handshake era, with one thread and no library, that does as its first argument says.

It is a JSON object:
    tools: the tools as listed.
    lists_after_s: seconds until tools are listed.
    answers: by tool, the result of a call, or `{"error": …}` for an error of JSON-RPC.
    pages: the number of characters of each resource, by address.
    exits_on: methods that end it as the first message.
    exits_in: tools whose call ends it.
    hangs_in: tools whose call never ends, and lets nothing be read, once it has reported progress.
    waits_in: tools whose call reports progress and is not answered, while others are.
    writes: what it writes in place of any answer, and then ends.
    log: a file to which the process appends its start and each call, as `PID WORD`.
"""

import json
import os
import sys
import time
from typing import Any

SCRIPT: dict[str, Any] = json.loads(sys.argv[1])


def note(word: str) -> None:
    if "log" in SCRIPT:
        with open(SCRIPT["log"], "a") as log:
            log.write(f"{os.getpid()} {word}\n")


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answered(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        about = {"name": "scripted", "version": "1"}
        able: dict[str, Any] = {"tools": {}, "resources": {}}
        made = {"protocolVersion": "2025-06-18", "capabilities": able, "serverInfo": about}
        return {"result": made}
    if method == "tools/list":
        time.sleep(SCRIPT.get("lists_after_s", 0))
        return {"result": {"tools": SCRIPT.get("tools", [])}}
    if method == "resources/read":
        page = {"uri": params["uri"], "mimeType": "text/html;profile=mcp-app"}
        return {"result": {"contents": [{**page, "text": "x" * SCRIPT["pages"][params["uri"]]}]}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": "Method not found"}}
    name = params["name"]
    note(name)
    if name in SCRIPT.get("exits_in", ()):
        sys.exit(f"{name} ended it")
    if name in (*SCRIPT.get("hangs_in", ()), *SCRIPT.get("waits_in", ())):
        send(method="notifications/progress", params={**params["_meta"], "progress": 1})
    if name in SCRIPT.get("waits_in", ()):
        return None
    while name in SCRIPT.get("hangs_in", ()):
        time.sleep(60)
    answer = SCRIPT.get("answers", {}).get(name, {"content": [{"type": "text", "text": str(os.getpid())}]})
    return answer if isinstance(answer, dict) and set(answer) == {"error"} else {"result": answer}


note("start")
first = True
for line in sys.stdin:
    if "writes" in SCRIPT:
        print(SCRIPT["writes"])
        break
    message = json.loads(line)
    if first and message["method"] in SCRIPT.get("exits_on", ()):
        sys.exit(f"Error: unexpected {message['method']}")
    first = False
    if "id" in message:
        reply = answered(message["method"], message.get("params") or {})
        if reply is not None:
            send(id=message["id"], **reply)
