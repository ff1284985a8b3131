"""A server that answers each call of its tool with a task that it has begun, and says little else."""

import json
import sys

_TASK = {
    "taskId": "task-1",
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttl": 60000,
    "pollInterval": 100,
}


def _result(method: str, params: dict[str, object]) -> dict[str, object]:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}},
                "serverInfo": {"name": "begins-tasks", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": "long", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            return {"task": _TASK}
        case _:
            return {}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            result = _result(request["method"], request.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
