"""SIGTERM to a server on stdio while calls run: what its client is told, what is answered, how it ends.

Of `runner serve` and of `runner proxy`, and in both eras of the protocol: calls of the later one are answered
by another way than those of the earlier.
"""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import until

pytestmark = [pytest.mark.kernel, pytest.mark.release]

TOOL = """
import asyncio
from fastmcp import Context, FastMCP

mcp = FastMCP("slow")


@mcp.tool
async def takes(seconds: float, ctx: Context, size: int = 4) -> str:
    await ctx.report_progress(1, 2, "begun")
    await asyncio.sleep(seconds)
    return "done" * (size // 4)

"""
# The same without any library, which starts sooner: what stands behind the proxy.
SERVER = """
import json, sys, threading, time

TOOL = {"name": "takes", "inputSchema": {"type": "object"}}


def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + chr(10))
    sys.stdout.flush()


def call(number, params):
    token = params.get("_meta", {}).get("progressToken")
    asked = params["arguments"]
    if token is not None:
        progress = {"progressToken": token, "progress": 1, "total": 2, "message": "begun"}
        say(method="notifications/progress", params=progress)
    time.sleep(asked["seconds"])
    text = "done" * (asked.get("size", 4) // 4)
    say(id=number, result={"content": [{"type": "text", "text": text}]})


for line in sys.stdin:
    message = json.loads(line)
    number, params = message.get("id"), message.get("params", {})
    match message.get("method"):
        case "initialize":
            about = {"name": "slow", "version": "1"}
            era = params["protocolVersion"]
            able = {"tools": {}}
            say(id=number, result={"protocolVersion": era, "capabilities": able, "serverInfo": about})
        case "tools/list":
            say(id=number, result={"tools": [TOOL]})
        case "tools/call":
            threading.Thread(target=call, args=(number, params), daemon=True).start()
        case _ if number is not None:
            say(id=number, error={"code": -32601, "message": "no such method"})
"""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
ABOUT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "tests", "version": "1"},
}
PATIENCE_S = 120
PIPE_BYTES = 4096
EACH = [(kind, era) for kind in ("serve", "proxy") for era in ("2025-11-25", "2026-07-28")]


class Talk:
    """A client of lines, which reads what it is told only when it is asked to."""

    def __init__(self, process: "subprocess.Popen[bytes]", era: str) -> None:
        self.process = process
        self._later = era == "2026-07-28"
        self._partial = b""
        self.messages: list[dict[str, Any]] = []

    def begin(self) -> None:
        if self._later:
            self._say({"id": 0, "method": "server/discover", "params": {"_meta": META}})
        else:
            self._say({"id": 0, "method": "initialize", "params": ABOUT})
        self.answer(0)
        if not self._later:
            self._say({"method": "notifications/initialized"})

    def call(self, number: int, seconds: float, **more: Any) -> None:
        meta = {**(META if self._later else {}), "progressToken": f"of-{number}"}
        arguments = {"seconds": seconds, **more}
        params = {"name": "takes", "arguments": arguments, "_meta": meta}
        self._say({"id": number, "method": "tools/call", "params": params})

    def answer(self, number: int) -> dict[str, Any]:
        """Read on until a request is answered, and return the answer."""
        while not (found := [message for message in self.messages if message.get("id") == number]):
            self._hear()
        return found[0]

    def wait_for_notice(self, number: int, part: str) -> None:
        """Read on until a notice of a call has some words in it."""
        while not any(part in words for words in self.notices(number)):
            self._hear()

    def notices(self, number: int) -> list[str]:
        of_it = [
            message["params"]
            for message in self.messages
            if message.get("method") == "notifications/progress"
        ]
        return [str(notice.get("message")) for notice in of_it if notice["progressToken"] == f"of-{number}"]

    def _say(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "nothing was said"
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        assert data, f"it ended; so far it sent {self.messages}"
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.messages += [json.loads(line) for line in lines]


@contextmanager
def talking(
    kind: str, era: str, environment: dict[str, str], folder: Path, *, drain_s: float
) -> Iterator[Talk]:
    tool = folder / "slow.py"
    tool.write_text(TOOL if kind == "serve" else SERVER)
    served = [str(tool)] if kind == "serve" else ["--", sys.executable, str(tool)]
    command = [sys.executable, "-m", "runner", kind, "--transport", "stdio", *served]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**environment, "RUNNER_DRAIN_S": str(drain_s)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        talk = Talk(process, era)
        talk.begin()
        yield talk
    finally:
        process.kill()
        process.communicate()


def text(answer: dict[str, Any]) -> str:
    return json.dumps(answer.get("result") or answer.get("error"))


@pytest.mark.parametrize(("kind", "era"), EACH)
def test_drain_answers_call_in_flight_and_refuses_new_ones(
    kind: str, era: str, environment: dict[str, str], folder: Path
) -> None:
    with talking(kind, era, environment, folder, drain_s=25) as talk:
        talk.call(1, 10, size=PIPE_BYTES)
        talk.wait_for_notice(1, "begun")
        talk.process.send_signal(signal.SIGTERM)
        talk.wait_for_notice(1, "The server is being stopped. The tool will be ended in 25 seconds")
        talk.call(2, 0)
        refused = talk.answer(2)
        # What it says is more than a pipe holds: it has to wait for its reader.
        assert until(lambda: b"outcome=ok" in (folder / "log").read_bytes())
        time.sleep(1)

        assert "is being stopped and takes no new calls; try again" in text(refused)
        assert len(text(talk.answer(1))) > PIPE_BYTES
        assert talk.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(("kind", "era"), EACH)
def test_call_longer_than_drain_ends_with_cancelled(
    kind: str, era: str, environment: dict[str, str], folder: Path
) -> None:
    with talking(kind, era, environment, folder, drain_s=1) as talk:
        talk.call(1, 25)
        talk.wait_for_notice(1, "begun")
        talk.process.send_signal(signal.SIGTERM)

        assert "E_CANCELLED" in text(talk.answer(1))
        assert talk.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("kind", ["serve", "proxy"])
def test_second_signal_ends_calls_at_once(kind: str, environment: dict[str, str], folder: Path) -> None:
    with talking(kind, "2026-07-28", environment, folder, drain_s=300) as talk:
        talk.call(1, 25)
        talk.wait_for_notice(1, "begun")
        talk.process.send_signal(signal.SIGTERM)
        talk.wait_for_notice(1, "is being stopped")
        talk.process.send_signal(signal.SIGTERM)

        assert "E_CANCELLED" in text(talk.answer(1))
        assert talk.process.wait(PATIENCE_S) == 0
