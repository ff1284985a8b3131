"""Response to a direct call of a client that is slow, disconnects, or sends unexpected messages."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from runner.protocol import tool_calls
from runner.protocol.tool_calls import CallsOverHttp, ToolCall

pytestmark = pytest.mark.anyio

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
BODY = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "one", "_meta": META}}
).encode()
USUAL = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-protocol-version", VERSION.encode()),
    (b"mcp-method", b"tools/call"),
    (b"mcp-name", b"one"),
]
RESULT = {"content": [], "resultType": "complete"}

Act = Callable[[ToolCall], Awaitable[None]]


@dataclass
class Acting:
    """Answers each call after `act`."""

    act: Act

    def takes(self, tool: str) -> bool:
        return tool == "one"

    def connected(self, session: str | None) -> None:
        return None

    async def answer(self, call: ToolCall) -> dict[str, Any]:
        await self.act(call)
        return dict(RESULT)


@dataclass
class Connection:
    """One exchange as a server of HTTP sees it, which insists on the order of messages.

    Attributes:
        takes: Whether the client takes what is sent to it; what is sent waits for that.
        leaves: Whether the client has left.
        sent: What was sent.
    """

    takes: asyncio.Event = field(default_factory=asyncio.Event)
    leaves: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[Message] = field(default_factory=list)
    _delivered: bool = False

    async def receive(self) -> Message:
        if not self._delivered:
            self._delivered = True
            return {"type": "http.request", "body": BODY, "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.takes.wait()
        due = "http.response.body" if self.sent else "http.response.start"
        ended = len(self.sent) > 1 and not self.sent[-1].get("more_body")
        if ended or message["type"] != due:
            raise RuntimeError(f"a {message['type']} after {self.sent}")
        self.sent.append(message)

    def begin(self, act: Act, headers: list[tuple[bytes, bytes]] | None = None) -> "asyncio.Task[None]":
        """Send a call, which is answered after `act`; what is not direct is answered with a 418."""
        scope = {"type": "http", "method": "POST", "headers": headers or USUAL}
        return asyncio.create_task(
            self._run(
                CallsOverHttp(_teapot, Acting(act), StreamableHTTPSessionManager(Server("none"))), scope
            )
        )

    async def _run(self, app: CallsOverHttp, scope: Scope) -> None:
        await app(scope, self.receive, self.send)

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages that were sent, of whichever kind the response is."""
        assert not self.sent[-1].get("more_body")
        whole = b"".join(message["body"] for message in self.sent[1:])
        if dict(self.sent[0]["headers"])[b"content-type"] == b"application/json":
            return [json.loads(whole)]
        return [json.loads(event.split(b"data: ")[1]) for event in whole.split(b"\r\n\r\n") if event]


async def _teapot(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _at_once(_call: ToolCall) -> None:
    return None


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


ANSWER = {"jsonrpc": "2.0", "id": 1, "result": RESULT}


async def test_aborted_notification_before_response_keeps_response() -> None:
    connection = Connection()

    async def tells_in_vain(call: ToolCall) -> None:
        telling = asyncio.ensure_future(call.notify("notifications/progress", {"progress": 1}))
        await _turns()
        telling.cancel()
        await asyncio.wait({telling})

    exchange = connection.begin(tells_in_vain)
    await _turns(20)
    connection.takes.set()
    await exchange

    assert connection.sent[0]["status"] == 200
    assert connection.messages() == [ANSWER]


@pytest.mark.parametrize("streams", [False, True])
async def test_late_notification_during_response_ignored_without_error(streams: bool) -> None:
    connection = Connection()
    telling: list[asyncio.Task[None]] = []

    async def leaves_one_telling(call: ToolCall) -> None:
        connection.takes.set()
        if streams:
            await call.notify("notifications/progress", {"progress": 1})
        connection.takes.clear()

        async def tell() -> None:
            await _turns()
            await call.notify("notifications/progress", {"progress": 2})

        telling.append(asyncio.create_task(tell()))

    exchange = connection.begin(leaves_one_telling)
    await _turns(20)
    connection.takes.set()
    await exchange
    await telling[0]

    assert connection.messages()[-1] == ANSWER
    assert len(connection.messages()) == (2 if streams else 1)


async def test_call_cancelled_by_client_and_server_stays_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_calls, "_PATIENCE_S", 0.0)
    connection = Connection()
    ending, ended = asyncio.Event(), asyncio.Event()

    async def ends_slowly(_call: ToolCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await ended.wait()

    exchange = connection.begin(ends_slowly)
    connection.leaves.set()
    await ending.wait()
    exchange.cancel()
    await asyncio.wait({exchange})

    assert exchange.cancelled()
    assert connection.sent == []


async def test_call_ended_by_client_alone_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "_PATIENCE_S", 0.0)
    connection = Connection()

    async def never(_call: ToolCall) -> None:
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    exchange = connection.begin(never)
    connection.leaves.set()
    await exchange
    await _turns()

    assert connection.sent == []
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("kind", [b"application/json", b"Application/JSON; charset=utf-8"])
async def test_body_declared_json_accepted(kind: bytes) -> None:
    connection = Connection()
    connection.takes.set()

    await connection.begin(_at_once, [(b"content-type", kind), *USUAL[1:]])

    assert connection.messages() == [ANSWER]
