"""Malformed and partial requests, by every transport: an answer for the client, one line in the log."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp_requests import INITIALIZED, initialize, plain
from support import ROOT, TOOLS, stop, until

pytestmark = [pytest.mark.kernel, pytest.mark.release]

DEEP = "[" * 20_000 + "]" * 20_000
TARGETS: dict[str, list[str | Path]] = {
    "serve": [TOOLS / "usual.py"],
    "proxy": ["--", sys.executable, ROOT / "tests/programs/odd_server.py"],
}
LEFT = "client disconnected during request"
NO_MESSAGE = "invalid message line"
# A member of params that has to be an object and is not, in requests of every kind.
ODD_META: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "echo", "arguments": {}}),
    ("tools/list", {}),
    ("resources/read", {"uri": "runner://files"}),
    ("resources/list", {}),
    ("prompts/get", {"name": "available_files"}),
    ("prompts/list", {}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}},
    ),
]
NO_MESSAGES = [
    '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"a": DEEP}}',
    '{"jsonrpc": "2.0", "id": {"a": DEEP}, "method": "ping"}',
    '{"jsonrpc": "2.0", "id": 99, "result": {"a": DEEP}}',
    "no json",
    "[]",
    '{"jsonrpc": "2.0", "id": 99, "error": 5}',
]


@dataclass
class Started:
    """A command that serves, and what it logs."""

    process: "subprocess.Popen[str]"
    log: Path

    def says(self, *words: str) -> bool:
        return until(lambda: all(word in self.log.read_text() for word in words))

    @property
    def tracebacks(self) -> list[str]:
        return re.findall(r".*\n  Traceback \(most recent call last\)", self.log.read_text())


@pytest.fixture
def starts(environment: dict[str, str], folder: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def start(*arguments: str | Path, **streams: Any) -> Started:
        log = folder / f"log{len(started)}"
        with log.open("w") as opened:
            process = subprocess.Popen(
                [sys.executable, "-m", "runner.cli.app", *map(str, arguments)],
                env={**environment, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                text=True,
                stderr=opened,
                **{"stdin": subprocess.DEVNULL, **streams},
            )
        started.append(Started(process, log))
        return started[-1]

    yield start
    for each in started:
        stop(each.process)


class Lines:
    """A client over lines, in a session of version 2025-06-18."""

    def __init__(self, started: Started) -> None:
        self.started = started
        assert started.process.stdin is not None
        assert started.process.stdout is not None
        self._to, self._from = started.process.stdin, started.process.stdout
        self.asks(initialize("2025-06-18"))
        self.says(json.dumps(INITIALIZED))

    def says(self, line: str) -> None:
        self._to.write(line + "\n")
        self._to.flush()

    def asks(self, message: dict[str, Any]) -> dict[str, Any]:
        self.says(json.dumps(message))
        while True:
            answer: dict[str, Any] = json.loads(self._from.readline())
            if answer.get("id") == message["id"] and "method" not in answer:
                return answer


@pytest.fixture
def speaks(starts: Callable[..., Started]) -> Callable[..., Lines]:
    """Start a command that serves over lines, and begin to speak with it."""

    def speak(command: str, *target: str | Path) -> Lines:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return Lines(starts(command, "--transport", "stdio", *target, **pipes))

    return speak


@pytest.mark.parametrize("command", TARGETS)
def test_invalid_lines_log_one_line_next_call_answered(command: str, speaks: Callable[..., Lines]) -> None:
    client = speaks(command, *TARGETS[command])

    for line in NO_MESSAGES:
        client.says(line.replace("DEEP", DEEP))
    refused = [
        client.asks({"jsonrpc": "2.0", "id": 5, "method": method, "params": {**params, "_meta": 5}})
        for method, params in ODD_META
    ]
    after = client.asks(plain("echo", {"value": "after"}))

    assert [answer.get("error", {}).get("code") for answer in refused] == [-32602] * len(ODD_META)
    assert {answer["error"]["message"] for answer in refused} == {"params._meta must be an object, not int"}
    assert "after" in json.dumps(after["result"])
    assert client.started.says(NO_MESSAGE)
    assert client.started.tracebacks == []


def test_upstream_invalid_message_logs_one_line(
    speaks: Callable[..., Lines],
) -> None:
    client = speaks("proxy", *TARGETS["proxy"])

    replies = {tool: client.asks(plain(tool)) for tool in ("no_messages", "odd_questions", "odd_answer")}
    after = client.asks(plain("echo", {"value": "after"}))

    assert "fine" in json.dumps(replies["no_messages"]["result"])
    answers = json.loads(replies["odd_questions"]["result"]["content"][0]["text"])
    assert {answer["error"]["code"] for answer in answers} == {-32602}
    assert replies["odd_answer"]["result"]["content"] == [{"type": "text", "text": "5"}]
    assert "after" in json.dumps(after["result"])
    assert client.started.says(NO_MESSAGE)
    assert client.started.tracebacks == []


def half(url: str, *headers: str, path: str = "/mcp") -> None:
    """Send half of a body, and hang up."""
    host, port = url.split("/")[2].split(":")
    lines = [f"POST {path} HTTP/1.1", f"host: {host}:{port}", *headers, "content-length: 1000"]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall("\r\n".join([*lines, "", '{"jsonrpc": ']).encode())


def test_client_disconnect_during_request_logs_one_line(
    starts: Callable[..., Started],
) -> None:
    started = starts("serve", TOOLS / "usual.py", "--transport", "http", "--port", "0")
    assert until(lambda: re.search(r"http://[\d.:]+/mcp", started.log.read_text()) is not None)
    url = re.findall(r"http://[\d.:]+/mcp", started.log.read_text())[0]
    kinds = ("content-type: application/json", "accept: application/json, text/event-stream")
    later = ("mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: echo")

    for path in ("/api/files", "/api/session", "/mcp"):
        half(url, *kinds, path=path)
    half(url, *kinds, *later)

    assert until(lambda: started.log.read_text().count(f"{LEFT} method=POST path=/mcp") == 2)
    assert started.tracebacks == []


def test_stranger_requests_and_cut_uploads_log_one_line(
    starts: Callable[..., Started],
) -> None:
    started = starts("serve", TOOLS / "usual.py", "--transport", "http", "--port", "0")
    assert until(lambda: re.search(r"http://[\d.:]+/mcp", started.log.read_text()) is not None)
    host, port = re.findall(r"http://([\d.]+):(\d+)/mcp", started.log.read_text())[0]
    upgrade = f"GET /mcp HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    upload = f"PUT /api/files?filename=a HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: 1000\r\n\r\nhalf"
    answers = []
    for data in (upgrade, "no request at all\r\n\r\n"):
        for _ in range(10):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(data.encode())
                answers.append(connection.recv(12))

    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(upload.encode())
        # Two would be under way only once it has come: what was sent before it has been answered.
        answers.append(_answered(host, int(port)))
        started.process.terminate()
        assert started.process.wait(60) == 0

    log = started.log.read_text()
    assert {bytes(answer[9:10]) for answer in answers} <= {b"4", b"2"}
    assert log.count("Unsupported upgrade request.") == 1
    assert log.count("Invalid HTTP request received.") == 1
    assert "WebSocket library" not in log
    assert log.count("requests that were not done are cut off count=1") == 1
    assert started.tracebacks == []


def _answered(host: str, port: int) -> bytes:
    with socket.create_connection((host, port)) as connection:
        connection.sendall(f"GET /healthz HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
        return connection.recv(12)
