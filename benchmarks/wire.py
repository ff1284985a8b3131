"""Raw MCP connections, so that no client library's time is counted.

Requests of the modern era carry their own envelope and need no handshake; those of versions before it are
spoken in a session, which begins with one.
"""

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from typing import Protocol

__all__ = ["LATEST", "Connection", "HttpConnection", "StdioConnection"]

LATEST = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_ANSWER_S = 180.0
_CHUNK_BYTES = 1 << 16
_ANSWER_BYTES = 1 << 20
_HEAD_BYTES = 1 << 14
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


def _initialize(version: str) -> bytes:
    about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    return _plain(0, "initialize", about)


def _plain(number: int, method: str, params: Mapping[str, object]) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
    return json.dumps(message).encode()


def _call(version: str, number: int, tool: str, arguments: Mapping[str, object]) -> bytes:
    """Return a call; one of the newest version carries its envelope."""
    envelope = {"_meta": _META} if version == LATEST else {}
    return _plain(number, "tools/call", {"name": tool, "arguments": dict(arguments), **envelope})


_INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class Connection(Protocol):
    """One way to a server. A stdio connection takes many requests at once, an HTTP one takes one."""

    def fileno(self) -> int:
        """Return the descriptor to wait on for answers."""
        ...

    def call(self, number: int, tool: str, arguments: Mapping[str, object]) -> bytes:
        """Return a call as its version of the protocol has it."""
        ...

    def frame(self, message: bytes, tool: str) -> bytes:
        """Return a message as it goes over the wire."""
        ...

    def send(self, data: bytes) -> None:
        """Send framed bytes."""
        ...

    def receive(self) -> list[bytes]:
        """Return the messages that are complete after one read.

        Raises:
            ConnectionError: The server has closed the connection.
        """
        ...

    def close(self) -> None:
        """Let go of what belongs to this connection alone."""
        ...


class StdioConnection:
    """The pipes of a server, one JSON message a line."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, version: str = LATEST) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the server was started without pipes")
        self._in = process.stdin.fileno()
        self._out = process.stdout.fileno()
        self._buffer = b""
        self._version = version
        if version != LATEST:
            self.send(self.frame(_initialize(version), ""))
            while not self.receive():
                pass
            self.send(self.frame(_INITIALIZED, ""))

    def call(self, number: int, tool: str, arguments: Mapping[str, object]) -> bytes:
        """Return a call as its version of the protocol has it."""
        return _call(self._version, number, tool, arguments)

    def fileno(self) -> int:
        """Return the server's standard output."""
        return self._out

    def frame(self, message: bytes, tool: str) -> bytes:
        """Return the message as a line."""
        return message + b"\n"

    def send(self, data: bytes) -> None:
        """Write a line."""
        os.write(self._in, data)

    def receive(self) -> list[bytes]:
        """Return the complete lines that are answers; notifications have no id."""
        data = os.read(self._out, _CHUNK_BYTES)
        if not data:
            raise ConnectionError("the server closed its standard output")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [line for line in lines if b'"id"' in line]

    def close(self) -> None:
        """Leave the pipes open: they are the server's life."""


class HttpConnection:
    """One kept-alive connection to the `/mcp` of a server on this machine."""

    def __init__(self, port: int, *, version: str = LATEST) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = f"127.0.0.1:{port}"
        self._buffer = bytearray()
        # Known once the head of an answer is here: where its body begins, and its length, None if chunked.
        self._body_from = 0
        self._length: int | None = None
        self._version = version
        self._session = ""
        if version != LATEST:
            self._begin_session()

    def call(self, number: int, tool: str, arguments: Mapping[str, object]) -> bytes:
        """Return a call as its version of the protocol has it."""
        return _call(self._version, number, tool, arguments)

    def _begin_session(self) -> None:
        """Shake hands; the head of the answer names the session."""
        self.send(self.frame(_initialize(self._version), ""))
        head = b""
        while _HEAD_END not in head:
            head += self._socket.recv(_ANSWER_BYTES)
        fields = dict(line.lower().partition(b": ")[::2] for line in head.split(_HEAD_END)[0].split(b"\r\n"))
        self._session = f"Mcp-Session-Id: {fields[b'mcp-session-id'].decode()}\r\n"
        while not head.endswith(_LAST_CHUNK):
            head += self._socket.recv(_ANSWER_BYTES)
        self.send(self.frame(_INITIALIZED, ""))
        taken = b""
        while _HEAD_END not in taken:
            taken += self._socket.recv(_ANSWER_BYTES)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def frame(self, message: bytes, tool: str) -> bytes:
        """Return the message as a POST request."""
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {self._host}\r\n"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"MCP-Protocol-Version: {self._version}\r\n{self._of_era(tool)}"
            f"Content-Length: {len(message)}\r\n\r\n"
        )
        return head.encode("ascii") + message

    def _of_era(self, tool: str) -> str:
        if self._version == LATEST:
            return f"MCP-Method: tools/call\r\nMCP-Name: {tool}\r\n"
        return self._session

    def send(self, data: bytes) -> None:
        """Send a request."""
        self._socket.sendall(data)

    def receive(self) -> list[bytes]:
        """Return the body of the answer once all of it is here."""
        data = self._socket.recv(_ANSWER_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data
        if not self._body_from and not self._headed():
            return []
        if self._length is None:
            complete = self._buffer.endswith(_LAST_CHUNK)
        else:
            complete = len(self._buffer) >= self._body_from + self._length
        if not complete:
            return []
        body = bytes(memoryview(self._buffer)[self._body_from :])
        answer = _last_event(body) if self._length is None else body
        self._buffer = bytearray()
        self._body_from = 0
        return [answer]

    def _headed(self) -> bool:
        """Take in the head of an answer, if all of it is here."""
        head, found, _ = self._buffer[:_HEAD_BYTES].partition(_HEAD_END)
        if found:
            self._body_from = len(head) + len(_HEAD_END)
            self._length = _content_length(bytes(head))
        return bool(found)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _content_length(head: bytes) -> int | None:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return None


def _last_event(body: bytes) -> bytes:
    """Return the answer at the end of a chunked stream of events: a call that lasts sends notices first."""
    text = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        text += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    events = [line[5:] for line in text.splitlines() if line.startswith(b"data:")]
    if not events:
        raise ConnectionError(f"an answer without a length and without events: {text[:500]!r}")
    return events[-1].strip()
