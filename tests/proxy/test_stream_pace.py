"""A server over HTTP that ends its streams and wants them opened again at once."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from proxying import over_http, proxied
from support import becomes

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")]


class Hasty(BaseHTTPRequestHandler):
    """Ends each stream at once, with a retry time of zero."""

    opened: list[str]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in request:
            self.say(202, "application/json", b"")
            return
        about = {"name": "hasty", "version": "1"}
        results: dict[str, dict[str, object]] = {
            "initialize": {"capabilities": {"tools": {}}, "serverInfo": about},
            "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "3"}]},
        }
        result = results.get(request["method"])
        if result is None:
            answer: dict[str, object] = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            version = (request.get("params") or {}).get("protocolVersion")
            answer = {"result": {**result, **({"protocolVersion": version} if version else {})}}
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}).encode()
        self.say(200, "application/json", body)

    def do_GET(self) -> None:
        self.opened.append(self.path)
        self.say(200, "text/event-stream", b"retry: 0\n: \n\n")

    def do_DELETE(self) -> None:
        self.say(200, "application/json", b"")

    def say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("mcp-session-id", "one")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Discard the message."""


@pytest.fixture
def hasty() -> Iterator[tuple[str, list[str]]]:
    opened: list[str] = []
    kind = type("Hasty", (Hasty,), {"opened": opened})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp", opened
        server.shutdown()
        thread.join()


async def test_ending_streams_reopened_at_bounded_rate(
    folder: Path, user: str, hasty: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, opened = hasty
    waits: list[float] = []

    async def wait(wait_s: float) -> None:
        waits.append(wait_s)
        await asyncio.sleep(3600)

    monkeypatch.setattr("runner.proxy.remote.sleep", wait)
    start = time.monotonic()
    async with proxied(folder, user, over_http(address), mode="legacy") as client:
        first = await client.call_tool("add")
        assert await becomes(lambda: bool(waits))
        second = await client.call_tool("add")

    assert [each.content[0].text for each in (first, second)] == ["3", "3"]
    # Of each of two connections, for the list of tools and the client: fifty at once, then ten a second.
    assert len(opened) <= 2 * (50 + 10 * (time.monotonic() - start))
