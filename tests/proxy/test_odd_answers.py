"""Servers over HTTP whose answers cannot be read as they are: halves of pairs, too many levels or values."""

# ruff: noqa: UP031, N815 - JSON is full of braces

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from proxying import over_http, proxied

pytestmark = pytest.mark.anyio

MANY = "[%s0]" % ("1," * 1_100_000)
NESTED = "[" * 9_000 + "]" * 9_000
ANSWERS = {
    "half": r'{"content": [{"type": "text", "text": "a\ud800b"}]}',
    "whole": r'{"content": [{"type": "text", "text": "a\ud83d\ude00b"}]}',
    "deep": '{"content": [], "structuredContent": {"a": %s}}' % NESTED,
    "many": '{"content": [], "structuredContent": {"a": %s}}' % MANY,
}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in [*ANSWERS, "nobodys"]]


class Odd(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        result = self.result(request["method"], request.get("params") or {})
        if "id" not in request:
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        outcome = '"result": ' + result if result else '"error": {"code": -32601, "message": "unknown"}'
        body = ('{"jsonrpc": "2.0", %s, "id": %s}' % (outcome, json.dumps(request["id"]))).encode()
        if "nobodys" in str(request.get("params")):
            body = MANY.encode()
        if self.path == "/stream":
            body = b"data: " + body + b"\n\n"
        self.send_response(200)
        kind = "text/event-stream" if self.path == "/stream" else "application/json"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def result(self, method: str, params: dict[str, Any]) -> str:
        if method == "initialize":
            info = {"serverInfo": {"name": "odd", "version": "1"}, "capabilities": {"tools": {}}}
            return json.dumps({"protocolVersion": params["protocolVersion"], **info})
        if method == "tools/list":
            return json.dumps({"tools": TOOLS})
        return ANSWERS.get(params["name"], "{}") if method == "tools/call" else ""

    def do_GET(self) -> None:
        self.send_error(405)

    do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Discard the message."""


@pytest.fixture
def odd() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("way", ["/plain", "/stream"])
async def test_lone_surrogate_replaced_and_deep_nesting_refused(
    folder: Path, user: str, odd: str, way: str
) -> None:
    async with proxied(folder, user, over_http(odd + way)) as client:
        whole, half = [(await client.call_tool(name)).content[0].text for name in ("whole", "half")]
        with pytest.raises(Exception, match="nests deeper than 200 levels"):
            await client.call_tool("deep")

    assert (whole, half) == ("a\N{GRINNING FACE}b", "a?b")


# In a stream of events none is as long as that: the SDK ends it at a mebibyte.
async def test_answer_of_too_many_values_refused_next_one_read(folder: Path, user: str, odd: str) -> None:
    async with proxied(folder, user, over_http(odd + "/plain")) as client:
        with pytest.raises(Exception, match=r"made of more than 1,000,000 values"):
            await client.call_tool("many")
        after = (await client.call_tool("whole")).content[0].text

    assert after == "a\N{GRINNING FACE}b"


async def test_large_answer_without_id_refused_and_not_repeated(
    folder: Path, user: str, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(folder, user, over_http(odd + "/plain")) as client:
        with pytest.raises(Exception, match=r"made of more than 1,000,000 values") as refused:
            await client.call_tool("nobodys")
        after = (await client.call_tool("whole")).content[0].text

    assert after == "a\N{GRINNING FACE}b"
    assert "1,1,1" not in str(refused.value)
    assert "1,1,1" not in caplog.text
