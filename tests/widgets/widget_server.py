"""A tool file served in a process of its own, and raw MCP requests to it as they go over HTTP."""

import http.client
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from somebody import somebody
from support import SAMPLES, environment_in, serving_over_http

__all__ = ["CHATUI", "WidgetServer", "serving"]

CHATUI = SAMPLES / "chatui.py"

_PROTOCOL = "2025-11-25"
_HELLO = {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


@dataclass(frozen=True)
class WidgetServer:
    """A server, by the address of its MCP endpoint."""

    url: str

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request in a session of its own; return the JSON-RPC response."""
        hello, session = self._send("initialize", _HELLO, {})
        if method == "initialize":
            return hello
        self._send("notifications/initialized", None, session)
        return self._send(method, params, session)[0]

    def result(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request; return its result."""
        result: dict[str, Any] = self.ask(method, params)["result"]
        return result

    def call(self, tool: str, arguments: Mapping[str, Any], **meta: Any) -> dict[str, Any]:
        """Call a tool."""
        return self.result("tools/call", {"name": tool, "arguments": arguments, "_meta": meta})

    def tools(self) -> dict[str, dict[str, Any]]:
        """Return the tools by their names."""
        return {tool["name"]: tool for tool in self.result("tools/list")["tools"]}

    def read(self, uri: str) -> dict[str, Any]:
        """Return what reading a resource gives."""
        return self.result("resources/read", {"uri": uri})

    def post(
        self, body: str | bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], str]:
        """Post a body as it is; return status, headers and body of the answer."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=50)
        accepted = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        try:
            content = body.encode() if isinstance(body, str) else body
            connection.request("POST", parts.path, content, {**accepted, **(headers or {})})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, named, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def _send(
        self, method: str, params: Mapping[str, Any] | None, session: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        message |= {} if method.startswith("notifications/") else {"id": 1}
        message |= {} if params is None else {"params": dict(params)}
        _, headers, body = self.post(json.dumps(message), session)
        more = {"MCP-Protocol-Version": _PROTOCOL}
        more |= {"Mcp-Session-Id": headers["mcp-session-id"]} if "mcp-session-id" in headers else {}
        return _response(body), more


@contextmanager
def serving(tool_file: Path = CHATUI, *arguments: str, **environment: str) -> Iterator[WidgetServer]:
    """Run `runner serve` over HTTP until the block ends."""
    with somebody() as user, tempfile.TemporaryDirectory() as made:
        own = environment_in(Path(made), **{"RUNNER_USER": user, **environment})
        with serving_over_http(tool_file, own, *arguments, cwd=Path(made)) as url:
            yield WidgetServer(url)


def _response(body: str) -> dict[str, Any]:
    """Return the response in a body, which is JSON or a stream of events."""
    lines = re.findall(r"(?m)^data: ?(.+)$", body) or [body]
    messages = [json.loads(line) for line in lines if line.strip()]
    return next((message for message in messages if "id" in message), {})
