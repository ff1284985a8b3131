"""Accepting connections while few descriptors are left."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from support import becomes

from runner.system.listening import QuietServer, listen_on
from sandbox.host import descriptors

pytestmark = pytest.mark.anyio


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served() -> AsyncIterator[tuple[int, QuietServer]]:
    listener = listen_on("127.0.0.1", 0, setting="--port")
    server = QuietServer(
        uvicorn.Config(
            page, ws="none", log_config=None, access_log=False, lifespan="off", limit_concurrency=6
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    assert await becomes(lambda: server.started)
    try:
        yield listener.getsockname()[1], server
    finally:
        server.should_exit = True
        await serving


async def status(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await reader.readuntil(b"\r\n")
    writer.close()
    return answer.split()[1]


async def test_connections_over_the_limit_get_503() -> None:
    async with served() as (port, server):
        alone = await status(port)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        assert await becomes(lambda: len(server.server_state.connections) == 6)
        refused = await status(port)
        for _reader, writer in held:
            writer.close()
        assert await becomes(lambda: not server.server_state.connections)
        again = await status(port)

    assert (alone, refused, again) == (b"200", b"503", b"200")


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
async def test_connections_wait_without_descriptors_and_log_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """With and without the descriptors that are kept free: then it is the kernel that refuses."""
    if not guarded:
        monkeypatch.setattr("runner.system.accepting._KEPT_FREE", 10**9)
    caplog.set_level(logging.WARNING)
    async with served() as (port, server):
        connections = server.server_state.connections
        sockets = [socket.socket() for _ in range(8)]
        for each in sockets:
            each.setblocking(False)
        with only(2):
            for each in sockets:
                with contextlib.suppress(BlockingIOError):
                    each.connect(("127.0.0.1", port))
            assert await becomes(lambda: any("have to wait" in line for line in caplog.messages))
            # Long enough for asyncio's own loop to have restarted.
            await asyncio.sleep(1.2)
            lines = list(caplog.messages)
            waiting = len(connections)
        served_at_last = await becomes(lambda: len(connections) == len(sockets))
        for each in sockets:
            each.close()

    assert len(lines) == 1
    assert waiting <= 2
    assert served_at_last
