"""Bounds on connections, against a server of one page: raw sockets, so that nothing is done for us."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from support import becomes

from runner.http.connections import HttpConnection, HttpConnections
from runner.system.listening import QuietServer, listen_on
from sandbox.host import descriptors

pytestmark = pytest.mark.anyio

ASK = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n"
HOLD = b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# What a test has opened; closed with its server.
OPENED: list[Stream] = []


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Page:
    """Answers at once, or holds a request until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.held = 0
        self.bodies: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/hold":
            self.held += 1
            await self.let_go.wait()
        if scope["path"] == "/body":
            while (message := await receive()).get("more_body"):
                pass
            self.bodies.append(message["type"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(**bounds: Any) -> AsyncIterator[tuple[int, Page, HttpConnections]]:
    connections = HttpConnections(**{"most": 100, "most_of_one": 100, **bounds})
    page = Page()
    listener = listen_on("127.0.0.1", 0, setting="--port")
    protocol: Any = partial(HttpConnection, connections=connections)
    config = uvicorn.Config(page, http=protocol, ws="none", log_config=None, access_log=False, lifespan="off")
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    assert await becomes(lambda: server.started)
    try:
        yield listener.getsockname()[1], page, connections
    finally:
        page.let_go.set()
        for _reader, writer in OPENED:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        OPENED.clear()
        server.should_exit = True
        await serving


async def opened(port: int, said: bytes = b"", host: str = "127.0.0.1") -> Stream:
    stream = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    stream[1].write(said)
    OPENED.append(stream)
    return stream


async def answer(stream: Stream) -> bytes:
    """Return what is said until the server ends the connection, or has said `ok`."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while not said.endswith(b"ok") and (more := await stream[0].read(1000)):
            said += more
    stream[1].close()
    return said


async def held(page: Page, port: int, count: int, **where: str) -> list[Stream]:
    before = page.held
    streams = [await opened(port, HOLD, **where) for _ in range(count)]
    assert await becomes(lambda: page.held == before + count)
    return streams


async def test_one_address_holds_its_share_and_another_is_served() -> None:
    async with served(most_of_one=3) as (port, page, _):
        holding = await held(page, port, 3)
        refused = await answer(await opened(port, ASK))
        elsewhere = await answer(await opened(port, ASK, "127.0.0.2"))
        page.let_go.set()
        answers = [await answer(stream) for stream in holding]
        again = await answer(await opened(port, ASK))

    assert refused.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"\r\nRetry-After: 5\r\n" in refused
    assert b"3 connections from your address" in refused
    assert [said.split()[1] for said in [*answers, elsewhere, again]] == [b"200"] * 5


async def test_a_full_server_says_so_and_when_to_come_back() -> None:
    async with served(most=2) as (port, page, _):
        await held(page, port, 2)
        refused = await answer(await opened(port, ASK, "127.0.0.2"))

    assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 5\r\n" in refused


async def test_a_connection_on_which_nothing_is_asked_makes_room_of_whom_there_are_most() -> None:
    async with served(most=4) as (port, _, _all):
        silent = [await opened(port) for _ in range(2)]
        half = await opened(port, b"GET /now HTTP/1.1\r\n")
        one = await opened(port, b"", "127.0.0.2")
        newcomers = [await answer(await opened(port, ASK, "127.0.0.3")) for _ in range(3)]
        one[1].write(ASK)
        spared = await answer(one)
        ended = [await answer(stream) for stream in silent[:1]]
        half[1].close()

    assert [said.split()[1] for said in [*newcomers, spared]] == [b"200"] * 4
    assert ended == [b""]


async def test_the_head_of_a_request_has_a_time_limit_that_single_bytes_do_not_move() -> None:
    async with served(headers_s=0.5) as (port, _, all_):
        slow = await opened(port, b"GET /now HTTP/1.1\r\n")
        reading = asyncio.create_task(answer(slow))
        while not reading.done():
            slow[1].write(b"X-A: b\r\n")
            await asyncio.sleep(0.05)
        after_one = await opened(port, ASK)
        first = await after_one[0].readuntil(b"ok")
        after_one[1].write(b"GET ")
        second = await answer(after_one)
        quick = await answer(await opened(port, ASK))
        nobody_left = await becomes(lambda: all_._count == 0)

    assert reading.result().startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert (first.split()[1], second.split()[1]) == (b"200", b"408")
    assert quick.split()[1] == b"200"
    assert nobody_left


async def test_a_body_that_hardly_comes_is_refused_and_one_that_comes_is_not() -> None:
    head = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    async with served(pace_s=0.5) as (port, page, _):
        slow = await opened(port, head)
        reading = asyncio.create_task(answer(slow))
        while not reading.done():
            slow[1].write(b"x")
            await asyncio.sleep(0.05)
        steady = await opened(port, head)
        taking = asyncio.create_task(answer(steady))
        for _ in range(50):
            steady[1].write(b"x" * 2000)
            await asyncio.sleep(0.02)
        answered = await taking

    assert reading.result().startswith(b"HTTP/1.1 408 ")
    assert answered.split()[1] == b"200"
    assert page.bodies == ["http.disconnect", "http.request"]


async def test_who_takes_nothing_of_an_answer_is_let_go() -> None:
    async with served(stalled_s=0.3) as (port, page, all_):

        async def flood(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await asyncio.sleep(0, "go")) and all_._count:
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

        page.__class__ = type("Flood", (Page,), {"__call__": staticmethod(flood)})
        stream = await opened(port, ASK)
        gone = await becomes(lambda: all_._count == 0)
        stream[1].close()

    assert gone


@contextmanager
def only(count: int) -> Iterator[None]:
    """Let this process open so many descriptors more, and no others."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors.open_now() + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("guarded", [True, False], ids=["kept-free", "none-left"])
async def test_without_descriptors_connections_wait_and_the_log_has_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """With and without the descriptors that are kept free: then it is the kernel that refuses."""
    if not guarded:
        monkeypatch.setattr("runner.system.accepting._KEPT_FREE", 10**9)
    caplog.set_level(logging.WARNING)
    async with served() as (port, _, all_):
        sockets = [socket.socket() for _ in range(8)]
        for each in sockets:
            each.setblocking(False)
        with only(2):
            for each in sockets:
                with contextlib.suppress(BlockingIOError):
                    each.connect(("127.0.0.1", port))
            assert await becomes(lambda: any("have to wait" in line for line in caplog.messages))
            # Long enough for asyncio's own loop to have begun anew.
            await asyncio.sleep(1.2)
            lines = list(caplog.messages)
            waiting = all_._count
        served_at_last = await becomes(lambda: all_._count == len(sockets))
        for each in sockets:
            each.close()

    assert len(lines) == 1
    assert waiting <= 2
    assert served_at_last
