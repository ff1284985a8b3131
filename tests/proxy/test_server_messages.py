"""A client session over real pipes: bounds of what a server sends, unreadable answers, the end."""

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST

from runner.protocol.internals.proxy import (
    HttpAnswer,
    NoAnswer,
    Peer,
    RelayingSession,
    ask_remote,
)
from runner.proxy.stdio_process import TOO_MANY_REQUESTS, AnswerLines, ServerLines
from runner.proxy.upstream import NotificationPace

pytestmark = pytest.mark.anyio


@dataclass
class Server:
    """The other end of the pipes, written by hand, and what our end receives."""

    us: ClientSession
    to_us: int
    from_us: asyncio.StreamReader
    reading: asyncio.ReadTransport
    pace: NotificationPace
    received: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)

    def send(self, **message: Any) -> None:
        os.write(self.to_us, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def next(self) -> dict[str, Any]:
        return dict(json.loads(await self.from_us.readline()))

    def ask(self, method: str) -> "asyncio.Task[dict[str, Any]]":
        asking = ask_remote(self.us, method, {}, timeout_s=None, progress=None, http=HttpAnswer())
        return asyncio.create_task(asking)

    def hang_up(self) -> None:
        if self.to_us >= 0:
            os.close(self.to_us)
            self.to_us = -1


@dataclass
class Answering(Peer):
    """Our side of the session."""

    pace: NotificationPace
    received: asyncio.Queue[tuple[str, Any]]

    def opened(self, messages: Any) -> None:
        messages.shed = self.pace.drop

    async def on_request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        match method:
            case "refuse":
                raise MCPError(code=INVALID_REQUEST, message="no")
            case "fail":
                raise ValueError("broken")
            case "mistake":
                raise KeyError("/var/lib/toolcell/state")
        return {"said": dict(params or {})}

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self.pace.passes(time.monotonic()):
            await self.received.put((method, params))


@asynccontextmanager
async def speaking() -> AsyncIterator[Server]:
    (from_it, to_us), (from_us, to_it) = os.pipe(), os.pipe()
    for end in (from_it, to_it):
        os.set_blocking(end, False)
    reader, loop, pace = asyncio.StreamReader(limit=1 << 26), asyncio.get_running_loop(), NotificationPace()
    received: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    outgoing = AnswerLines(to_it)
    outgoing.incoming = incoming = ServerLines(from_it, refusals=outgoing)
    async with RelayingSession(Answering(pace, received), incoming, outgoing) as session:
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_us, "rb")
        )
        server = Server(session, to_us, reader, reading, pace, received)
        yield server
        server.hang_up()
    reading.close()
    os.close(from_it)
    os.close(to_it)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with speaking() as it:
        yield it


async def test_error_of_server_is_not_a_lost_connection(server: Server) -> None:
    request = server.ask("tools/call")
    id_ = (await server.next())["id"]
    server.send(id=id_, error={"code": CONNECTION_CLOSED, "message": "not today", "data": [1]})

    with pytest.raises(MCPError) as refused:
        await request

    assert not isinstance(refused.value, NoAnswer)
    assert (refused.value.message, refused.value.data) == ("not today", [1])


async def test_unreadable_answer_ends_its_request_with_reason(server: Server) -> None:
    deep, odd = server.ask("deep"), server.ask("odd")
    ids = {message["method"]: message["id"] for message in [await server.next() for _ in range(2)]}

    nested = b"[" * 9_000 + b"]" * 9_000
    os.write(server.to_us, b'{"jsonrpc": "2.0", "result": {"a": %s}, "id": %d}\n' % (nested, ids["deep"]))
    server.send(id=ids["odd"], result=["no object"])

    for request, words in (
        (deep, "nests deeper than 200 levels"),
        (odd, "is not a JSON-RPC message"),
    ):
        with pytest.raises(NoAnswer) as refused:
            await request
        assert words in refused.value.message


@pytest.mark.parametrize("method", ["fail", "mistake"])
async def test_failed_request_of_server_answered_with_id_of_log(
    server: Server, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.send(id=1, method=method, params={})
    failed = (await server.next())["error"]
    server.send(id=2, method="refuse", params={})
    refused = (await server.next())["error"]
    server.send(id=3, method="other", params={"a": 1})
    after = await server.next()

    assert failed["code"] == INTERNAL_ERROR
    assert re.search(r"\b[0-9a-f]{12}\b", failed["message"])
    assert "broken" not in failed["message"]
    assert "/var/lib" not in failed["message"]
    assert ("broken" if method == "fail" else "/var/lib") in caplog.text
    assert (refused["code"], refused["message"]) == (INVALID_REQUEST, "no")
    assert after["result"] == {"said": {"a": 1}}


async def test_notifications_above_rate_limit_dropped_and_counted(server: Server) -> None:
    for number in range(1500):
        server.send(method="notifications/message", params={"n": number})
        await asyncio.sleep(0)
    request = server.ask("last")
    server.send(id=(await server.next())["id"], result={"of": "last"})

    assert await request == {"of": "last"}
    assert server.received.qsize() + server.pace.dropped == 1500
    assert server.received.qsize() >= 1000
    assert server.pace.dropped > 0


async def test_server_that_reads_no_answers_disconnected(server: Server) -> None:
    request = server.ask("tools/call")
    # Control: one that reads them may send as many requests.
    await server.next()
    for number in range(400):
        server.send(id=f"read-{number}", method="other", params={})
        await server.next()
    assert not request.done()

    server.reading.pause_reading()
    os.set_blocking(server.to_us, False)
    while not request.done():
        with suppress(BlockingIOError):
            server.send(id="unread", method="other", params={"text": "x" * 4000})
        await asyncio.sleep(0)

    with pytest.raises(NoAnswer, match=TOO_MANY_REQUESTS):
        await request


async def test_waiting_request_ends_with_connection(server: Server) -> None:
    request = server.ask("tools/call")
    await server.next()

    server.hang_up()

    for waiting in (request, server.ask("more")):
        with pytest.raises(NoAnswer) as ended:
            await waiting
        assert ended.value.code == CONNECTION_CLOSED
