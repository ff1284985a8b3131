"""A server without any library that says all its reports and the answer in one breath: one write of bytes.

Over stdio it speaks the handshake era, over HTTP the one that it is told.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPORTS = 100

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"

_ABOUT: dict[str, Any] = {"capabilities": {"tools": {}}, "serverInfo": {"name": "hasty", "version": "1"}}
_TOOLS = {"tools": [{"name": "hurry", "inputSchema": {"type": "object"}}]}
_UNCACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def messages_for(request: dict[str, Any], era: str) -> list[dict[str, Any]]:
    """Return the messages that answer a request: the progress reports of a call, and the answer."""
    of_era = _UNCACHED if era == MODERN else {}
    reports: list[dict[str, Any]] = []
    match request["method"], era:
        case ("initialize", "2025-11-25"):
            result = {"protocolVersion": HANDSHAKE, **_ABOUT}
        case ("server/discover", "2026-07-28"):
            result = {"supportedVersions": [MODERN], **_ABOUT}
        case ("tools/list", _):
            result = _TOOLS
        case ("tools/call", _):
            token = request["params"]["_meta"]["progressToken"]
            reports = [
                {"progressToken": token, "progress": n, "total": REPORTS, "message": f"report {n}"}
                for n in range(1, REPORTS + 1)
            ]
            result = {"content": [{"type": "text", "text": "done"}]}
        case _:
            unknown = {"code": -32601, "message": "Method not found"}
            return [{"jsonrpc": "2.0", "id": request["id"], "error": unknown}]
    return [
        *({"jsonrpc": "2.0", "method": "notifications/progress", "params": report} for report in reports),
        {"jsonrpc": "2.0", "id": request["id"], "result": {**result, **of_era}},
    ]


@contextmanager
def listening(era: str) -> Iterator[str]:
    """Serve over HTTP in this process, and yield the address."""

    class Endpoint(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "id" not in request:
                self._send(202, "text/plain", b"")
                return
            events = [f"event: message\ndata: {json.dumps(each)}\n\n" for each in messages_for(request, era)]
            self._send(200, "text/event-stream", "".join(events).encode())

        def do_GET(self) -> None:
            self._send(405, "text/plain", b"")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            sys.stdout.write("".join(json.dumps(each) + "\n" for each in messages_for(message, HANDSHAKE)))
            sys.stdout.flush()
