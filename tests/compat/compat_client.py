"""One MCP client over stdio, in JSON-RPC as it is on the wire, unaltered by a library."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["MODERN", "SESSION", "Peer", "ServerEnded", "started"]

MODERN = "2026-07-28"
SESSION = "2025-06-18"
_CLIENT = {"name": "compat", "version": "1"}
_ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_LINE_BYTES = 1 << 26
_GREETING_S = 90.0
_END_S = 10.0
_LAST_WORDS = 600


class ServerEnded(Exception):
    """The server ended, or said nothing in time; the message has its last words."""


class Peer:
    """A server at the other end of two pipes, spoken to in one era of the protocol.

    Attributes:
        era: Which one.
        offers: The capabilities that it names.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._numbers = itertools.count(1)
        self.era = ""
        self.offers: frozenset[str] = frozenset()

    async def greet(self, era: str) -> None:
        """Begin to speak in an era.

        Raises:
            ServerEnded: It does not know that era, or has ended.
        """
        self.era = era
        if era == MODERN:
            answer = await self.request("server/discover", {}, _GREETING_S)
        else:
            about = {"protocolVersion": era, "capabilities": {}, "clientInfo": _CLIENT}
            answer = await self.request("initialize", about, _GREETING_S)
            await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        if "error" in answer:
            raise ServerEnded(f"it does not speak {era}: {answer['error'].get('message')}")
        self.offers = frozenset(answer.get("result", {}).get("capabilities", {}))

    async def request(self, method: str, params: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request; return its `result` or `error` under that name.

        Raises:
            ServerEnded: There was no answer.
        """
        number = next(self._numbers)
        parameters = {**params, "_meta": _ENVELOPE} if self.era == MODERN else dict(params)
        await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer(number)
        except TimeoutError:
            raise ServerEnded(f"no answer to {method} in {timeout_s:g} s; {self.last_words()}") from None

    async def _answer(self, number: int) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "method" in message and "id" in message:
                    await self._refuse(message)
                elif isinstance(message, dict) and message.get("id") == number:
                    return {key: message[key] for key in ("result", "error") if key in message}
        raise ServerEnded(f"it ended; {self.last_words()}")

    async def _refuse(self, request: Mapping[str, Any]) -> None:
        """Answer what the server asks of its client: a ping, or something that this client cannot do."""
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": -32601, "message": "this client does not have that"}
        await self._send(answer)

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            raise ServerEnded(f"it ended; {self.last_words()}") from None

    def last_words(self) -> str:
        """Return the end of what it wrote to standard error."""
        words = " ".join(self._log.read_text(errors="replace").split())
        return f"it said: {words[-_LAST_WORDS:]}" if words else "it said nothing"


@contextlib.asynccontextmanager
async def started(
    command: Sequence[str], *, folder: Path, variables: Mapping[str, str], log: Path
) -> AsyncIterator[Peer]:
    """Start a server; end it, with all that is in its process group, when the block ends."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env=dict(variables),
            limit=_LINE_BYTES,
            start_new_session=True,
        )
    try:
        yield Peer(process, log)
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_S)
    # Also when it has ended: what it started and left behind is in its group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
