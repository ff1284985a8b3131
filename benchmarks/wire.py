"""Raw MCP connections, so that no client library's time is counted.

Requests are of the modern era: each carries its own envelope and needs no handshake before it.
"""

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from typing import Protocol

__all__ = ["Connection", "HttpConnection", "StdioConnection", "call_message"]

_PROTOCOL = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": _PROTOCOL,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_CHUNK_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"


def call_message(number: int, tool: str, arguments: Mapping[str, str]) -> bytes:
    """Return the JSON-RPC request that calls `tool`, with `number` as its id."""
    params = {"name": tool, "arguments": dict(arguments), "_meta": _META}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()


class Connection(Protocol):
    """One way to a server. A stdio connection takes many requests at once, an HTTP one takes one."""

    def fileno(self) -> int:
        """Return the descriptor to wait on for answers."""
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

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the server was started without pipes")
        self._in = process.stdin.fileno()
        self._out = process.stdout.fileno()
        self._buffer = b""

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

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = f"127.0.0.1:{port}"
        self._buffer = b""

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def frame(self, message: bytes, tool: str) -> bytes:
        """Return the message as a POST request."""
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {self._host}\r\n"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"MCP-Protocol-Version: {_PROTOCOL}\r\nMCP-Method: tools/call\r\nMCP-Name: {tool}\r\n"
            f"Content-Length: {len(message)}\r\n\r\n"
        )
        return head.encode("ascii") + message

    def send(self, data: bytes) -> None:
        """Send a request."""
        self._socket.sendall(data)

    def receive(self) -> list[bytes]:
        """Return the body of the answer once all of it is here."""
        data = self._socket.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data
        head, found, body = self._buffer.partition(_HEAD_END)
        if not found or len(body) < _content_length(head):
            return []
        self._buffer = b""
        return [body]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise ConnectionError(f"an answer without a length, which a single result never is: {head!r}")
