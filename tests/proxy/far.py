"""A server on another machine, as the proxy sees it: over HTTP, by hand, so that a test can say anything."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]
Form = Callable[[dict[str, Any], Message, bytes], tuple[dict[str, str], Iterable[bytes]]]
"""Returns headers and body of an answer, given the request, its headers and the encoded message."""


class Refused(Exception):
    """The server answers with a JSON-RPC error of these words."""


@dataclass(frozen=True)
class Far:
    """Messages of a server in the handshake era.

    Attributes:
        tools: What it lists.
        able: What it announces beside tools.
        answer: Returns the result of any other request, given its method and params; raises `Refused`.
    """

    tools: Sequence[dict[str, Any]]
    able: dict[str, Any]
    answer: Answer

    def respond(self, request: dict[str, Any]) -> bytes:
        respond: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            respond["result"] = self.result(request["method"], request.get("params") or {})
        except Refused as error:
            respond["error"] = {"code": -32601, "message": str(error)}
        return json.dumps(respond).encode()

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                able, about = {"tools": {}, **self.able}, {"name": "far", "version": "1"}
                version = params["protocolVersion"]
                return {"protocolVersion": version, "capabilities": able, "serverInfo": about}
            case "tools/list":
                return {"tools": list(self.tools)}
            case "server/discover":
                raise Refused("Method not found")
            case _:
                return self.answer(method, params)


class _Sender(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def send(self, status: int, headers: Mapping[str, str], body: Iterable[bytes]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.close_connection = "content-length" not in headers
        self.end_headers()
        # A client that has enough closes the connection.
        with suppress(ConnectionError):
            for part in body:
                self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        pass


def plain(_request: dict[str, Any], _headers: object, body: bytes) -> tuple[dict[str, str], list[bytes]]:
    return {"content-type": "application/json", "content-length": str(len(body))}, [body]


@contextmanager
def far_server(
    tools: Sequence[dict[str, Any]],
    answer: Answer,
    form: Form = plain,
    status: Callable[[dict[str, Any], Message], int] = lambda _request, _headers: 200,
    **able: Any,
) -> Iterator[str]:
    """Serve in this process; yield the address. The other arguments are those of `Far`.

    An answer whose status is not 200 has no body.
    """
    far = Far(tools, able, answer)

    class Endpoint(_Sender):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            code = status(request, self.headers)
            if code != 200:
                self.send(code, *form(request, self.headers, b""))
            elif "id" in request:
                self.send(200, *form(request, self.headers, far.respond(request)))
            else:
                self.send(202, *plain(request, {}, b""))

        def do_GET(self) -> None:
            self.send(405, *plain({}, {}, b""))

        def do_DELETE(self) -> None:
            self.send(405, *plain({}, {}, b""))

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            serving.join()


def tool(name: str, *arguments: str, **more: Any) -> dict[str, Any]:
    """A tool that takes texts, as a server lists it."""
    properties = {argument: {"type": "string"} for argument in arguments}
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}, **more}
