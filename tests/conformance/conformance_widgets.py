"""The operations on the widget server: `sample_tools/chatui.py`, served by the project over HTTP.

One server, and one Inspector beside it, answer the cases of a process: neither keeps anything of a case.
"""

import atexit
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

from inspecting import Inspector, app_info, inspector
from widget_server import WidgetServer, serving

__all__ = ["OPERATIONS"]

_STACK = ExitStack()
atexit.register(_STACK.close)


@cache
def _server() -> WidgetServer:
    return _STACK.enter_context(serving())


@cache
def _inspector() -> Inspector:
    return _STACK.enter_context(inspector())


def mcp(case: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the answer to one request."""
    server, method = _server(), case["method"]
    response = server.ask(method, _resolved(server, case.get("params")))
    output: Any = response.get("result")
    selected = case.get("select")
    error = {key: response["error"][key] for key in ("code", "message")} if "error" in response else None
    listed = method == "resources/list" and output is not None
    tools = server.result("tools/list")["tools"] if listed or method == "tools/call" else []
    observed: dict[str, Any] = {"output": output, "error": error, "tools": tools, "reads": {}}
    if listed:
        uris = [resource["uri"] for resource in output["resources"]]
        observed["reads"] = {uri: server.read(uri) for uri in uris if uri.startswith("ui://")}
    if method == "tools/call":
        observed["tool"] = (case.get("params") or {}).get("name")
    if selected is not None and output is not None:
        named = [tool for tool in output["tools"] if tool["name"] == selected]
        observed["output"] = named[0] if named else None
    return observed


def http_raw(case: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the answer to a body posted as it is."""
    status, _, body = _server().post(case["body"])
    return {"status": status, "body": body}


def static_check(case: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the text of a page."""
    return {"html": _server().read(case["uri"])["contents"][0]["text"]}


def inspector_cli(case: Mapping[str, Any]) -> dict[str, Any]:
    """Observe what the Inspector's command line says of the server."""
    status, output = app_info(_server().url, case["args"])
    return {"exit": status, "output": output}


def inspector_web(case: Mapping[str, Any]) -> dict[str, Any]:
    """Observe what the Inspector's page shows of one call."""
    [shown] = _inspector().show(_server().url, [(case["tool"], case["args"])])
    return {"data_app_status": shown.status, "frame_text": shown.text}


OPERATIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "mcp": mcp,
    "http_raw": http_raw,
    "static_check": static_check,
    "inspector_cli": inspector_cli,
    "inspector_web": inspector_web,
}


def _resolved(server: WidgetServer, value: Any) -> Any:
    """Return params with what stands for a value of a tool's descriptor replaced by that value."""
    if isinstance(value, Mapping) and set(value) == {"$tool_meta"}:
        name, pointer = value["$tool_meta"]
        found: Any = server.tools()[name]
        for step in pointer.split("/")[1:]:
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return found
    if isinstance(value, Mapping):
        return {key: _resolved(server, item) for key, item in value.items()}
    return [_resolved(server, item) for item in value] if isinstance(value, list) else value
