"""A stdio server without any library, of the handshake era, whose lists have pages of two."""

import json
import sys
from collections.abc import Callable
from typing import Any

LISTS: dict[str, tuple[str, Callable[[int], dict[str, str]]]] = {
    "resources/list": ("resources", lambda n: {"uri": f"page://{n}", "name": str(n)}),
    "resources/templates/list": (
        "resourceTemplates",
        lambda n: {"uriTemplate": f"page://{n}/{{x}}", "name": str(n)},
    ),
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"resources": {}},
            "serverInfo": {"name": "paged", "version": "1"},
        }
    key, item = LISTS[method]
    first = int(params.get("cursor", 0))
    page: dict[str, Any] = {key: [item(n) for n in range(first, min(first + 2, 5))]}
    return page | ({"nextCursor": str(first + 2)} if first + 2 < 5 else {})


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        reply["result"] = answer(request["method"], request.get("params", {}))
    except KeyError as unknown:
        reply["error"] = {"code": -32601, "message": f"no {unknown}"}
    print(json.dumps(reply), flush=True)
