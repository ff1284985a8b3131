"""Requests and answers over real pipes: correlation, questions, progress, cancellation, and the end."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, REQUEST_TIMEOUT

from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.proxy.dispatcher import LineDispatcher
from runner.proxy.notification_pace import DROPPED

pytestmark = pytest.mark.anyio


@dataclass
class Server:
    """The other end of the pipes, spoken to by hand, and what our end hears."""

    us: LineDispatcher
    to_us: int
    from_us: asyncio.StreamReader
    heard: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, **message: Any) -> None:
        os.write(self.to_us, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def next(self) -> dict[str, Any]:
        line = await asyncio.wait_for(self.from_us.readline(), 30)
        return dict(json.loads(line))

    async def asked(self, _exchange: object, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        if method == "refuse":
            raise MCPError(code=INVALID_REQUEST, message="no")
        if method == "fail":
            raise ValueError("broken")
        if method == "mistake":
            raise KeyError("/var/lib/toolcell/state")
        if method == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return {"said": dict(params or {})}

    async def told(self, _exchange: object, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/gone":
            raise anyio.BrokenResourceError
        if method == "notifications/mistake":
            raise TypeError("unhashable")
        await self.heard.put((method, params))

    def hang_up(self) -> None:
        if self.to_us >= 0:
            os.close(self.to_us)
            self.to_us = -1


@asynccontextmanager
async def speaking() -> AsyncIterator[Server]:
    (from_it, to_us), (from_us, to_it) = os.pipe(), os.pipe()
    for end in (from_it, to_it):
        os.set_blocking(end, False)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_us, "rb")
    )
    dispatcher = LineDispatcher(IncomingLines(from_it), OutgoingLines(to_it))
    server = Server(dispatcher, to_us, reader)
    async with anyio.create_task_group() as tasks:
        await tasks.start(dispatcher.run, server.asked, server.told)
        yield server
        tasks.cancel_scope.cancel()
    server.hang_up()
    reading.close()
    os.close(from_it)
    os.close(to_it)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with speaking() as it:
        yield it


async def test_requests_get_own_answers_in_any_order(server: Server) -> None:
    first = asyncio.create_task(server.us.send_raw_request("a", {"n": 1}))
    one = await server.next()
    second = asyncio.create_task(server.us.send_raw_request("b", None))
    two = await server.next()

    server.say(id=99, result={"nobody": "asked"})
    server.say(id=str(two["id"]), result={"of": "b"})
    server.say(id=one["id"], error={"code": -5, "message": "not today", "data": [1]})

    assert (one["method"], one["params"], "params" in two) == ("a", {"n": 1}, False)
    assert await second == {"of": "b"}
    with pytest.raises(MCPError) as refused:
        await first
    assert (refused.value.error.code, refused.value.error.message, refused.value.error.data) == (
        -5,
        "not today",
        [1],
    )


async def test_server_requests_answered_refused_or_abandoned(server: Server) -> None:
    for number, method in enumerate(("answer", "refuse", "fail", "wait")):
        server.say(id=f"q{number}", method=method, params={"n": number})
    answers = {said["id"]: said for said in [await server.next() for _ in range(3)]}
    server.say(method="notifications/cancelled", params={"requestId": "q3"})
    await asyncio.wait_for(server.cancelled.wait(), 30)
    server.say(id="q4", method="answer", params={})

    assert answers["q0"]["result"] == {"said": {"n": 0}}
    assert answers["q1"]["error"] == {"code": INVALID_REQUEST, "message": "no"}
    assert answers["q2"]["error"]["code"] == INTERNAL_ERROR
    # No answer came to the one that was cancelled.
    assert (await server.next())["id"] == "q4"


async def test_progress_reaches_its_request_and_notifications_heard(server: Server) -> None:
    reports: list[Any] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    call = asyncio.create_task(
        server.us.send_raw_request("call", {"_meta": {"mine": 1}}, {"on_progress": progress})
    )
    asked = await server.next()
    token = asked["params"]["_meta"]["progressToken"]
    for params in (
        {"progressToken": token, "progress": 1, "total": 2, "message": "half"},
        {"progressToken": token, "progress": "much"},
        {"progressToken": "other", "progress": 2},
    ):
        server.say(method="notifications/progress", params=params)
    server.say(method="notifications/gone")
    server.say(method="notifications/mistake")
    server.say(method="toolcell/dropped", params={"count": 9})
    server.say(method="notifications/message", params={"level": "info"})
    server.say(id=asked["id"], result={})

    assert asked["params"]["_meta"] == {"mine": 1, "progressToken": token}
    assert await call == {}
    assert reports == [(1, 2, "half")]
    assert [(await server.heard.get())[0] for _ in range(4)] == [
        *["notifications/progress"] * 3,
        "notifications/message",
    ]


@pytest.mark.parametrize(
    "said", [{"result": {}}, {"error": {"code": 1, "message": "no"}}], ids=["result", "error"]
)
async def test_unrequested_answers_limit_dropped_notices_to_client(
    server: Server, said: dict[str, Any]
) -> None:
    """An answer that is awaited has the client told at once, since nobody listens after it."""
    request = asyncio.create_task(server.us.send_raw_request("a", None))
    id_ = (await server.next())["id"]

    for number in range(1500):
        server.say(method="notifications/message", params={"n": number})
        server.say(id=10_000 + number, **said)
        await asyncio.sleep(0)
    server.say(id=id_, result={"of": "a"})

    assert await request == {"of": "a"}
    passed_on, dropped = 0, list[int]()
    while passed_on + sum(dropped) < 1500:
        method, params = await asyncio.wait_for(server.heard.get(), 30)
        if method == DROPPED:
            dropped.append(params["count"])
        else:
            passed_on += 1
    # The first to be dropped is told of at once, others once a second, the last together with the answer.
    assert passed_on >= 1000
    assert dropped[0] == 1
    assert 2 <= len(dropped) < 30
    assert server.heard.empty()


async def test_abandoned_request_cancelled_at_server(server: Server) -> None:
    call = asyncio.create_task(server.us.send_raw_request("call", {}))
    asked = await server.next()
    call.cancel()
    told = await server.next()
    with pytest.raises(MCPError) as late:
        await server.us.send_raw_request("slow", {}, {"timeout": 0.01})
    slow, given_up = await server.next(), await server.next()
    with pytest.raises(MCPError):
        await server.us.send_raw_request("initialize", {}, {"timeout": 0.01, "cancel_on_abandon": False})
    quiet = await server.next()
    await server.us.notify("notifications/last", None)

    assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", asked["id"])
    assert late.value.error.code == REQUEST_TIMEOUT
    assert given_up["params"]["requestId"] == slow["id"]
    assert quiet["method"] == "initialize"
    assert await server.next() == {"jsonrpc": "2.0", "method": "notifications/last"}


async def test_request_id_may_be_chosen_but_not_twice(server: Server) -> None:
    call = asyncio.create_task(server.us.send_raw_request("listen", {}, {"request_id": "listen-1"}))
    asked = await server.next()

    with pytest.raises(ValueError, match="already in use"):
        await server.us.send_raw_request("listen", {}, {"request_id": "listen-1"})
    server.say(id="listen-1", result={"over": True})

    assert asked["id"] == "listen-1"
    assert await call == {"over": True}


async def test_waiting_request_ends_with_connection(server: Server) -> None:
    call = asyncio.create_task(server.us.send_raw_request("call", {}))
    await server.next()

    server.hang_up()

    for waiting in (call, server.us.send_raw_request("more", {})):
        with pytest.raises(MCPError) as ended:
            await waiting
        assert ended.value.error.code == CONNECTION_CLOSED


async def test_unreadable_answer_ends_its_request_with_reason(server: Server) -> None:
    deep, odd = [asyncio.create_task(server.us.send_raw_request(name, None)) for name in ("deep", "odd")]
    ids = [(await server.next())["id"] for _ in range(2)]

    nested = b"[" * 9_000 + b"]" * 9_000
    os.write(server.to_us, b'{"jsonrpc": "2.0", "result": {"a": %s}, "id": %d}\n' % (nested, ids[0]))
    server.say(id=ids[1], result=["no object"])

    for request, words in (
        (deep, "nests deeper than 200 levels"),
        (odd, "is not a JSON-RPC message"),
    ):
        with pytest.raises(MCPError) as refused:
            await asyncio.wait_for(request, 30)
        assert words in refused.value.error.message


@pytest.mark.parametrize("method", ["fail", "mistake"])
async def test_internal_error_answers_request_with_id_and_continues(
    server: Server, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.say(id=1, method=method, params={})
    failed = (await server.next())["error"]["message"]
    server.say(id=2, method="other", params={"a": 1})
    after = await server.next()

    assert re.search(r"\b[0-9a-f]{12}\b", failed)
    assert "broken" not in failed
    assert "/var/lib" not in failed
    assert ("broken" if method == "fail" else "/var/lib") in caplog.text
    assert after["result"] == {"said": {"a": 1}}
