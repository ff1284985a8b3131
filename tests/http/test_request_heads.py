"""Connections whose clients send long heads, trailers or many requests at once."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.http.connection import HttpConnection

pytestmark = pytest.mark.anyio

GET = b"GET /a HTTP/1.1\r\nhost: here\r\n"
CLOSES = b"connection: close\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the headers and the number of bytes of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = json.dumps({"names": [name.decode() for name, _ in scope["headers"]], "size": size}).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(
    app: ASGIApp, connection: type[HttpConnection] = HttpConnection
) -> AsyncIterator[uvicorn.Server]:
    config = uvicorn.Config(app, port=0, http=connection, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0)
    server.config.port = listener.getsockname()[1]
    yield server
    server.should_exit = True
    await running


@pytest.fixture
async def server() -> AsyncIterator[uvicorn.Server]:
    async with serving(echo) as one:
        yield one


async def answer_to(server: uvicorn.Server, *pieces: bytes) -> bytes:
    """Return what the server sends until it closes the connection, or resets it with unread data."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.config.port)
    answer = bytearray()

    async def read() -> None:
        while piece := await reader.read(65536):
            answer.extend(piece)

    reading = asyncio.create_task(read())
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        await reading
    writer.close()
    return bytes(answer)


@pytest.mark.parametrize(
    ("fields", "is_answered"),
    [
        ([b"x: %s\r\n" % (b"a" * 50_000)], True),
        ([b"x: %s\r\n" % (b"a" * 80_000)], False),
        ([b"x: " + b"a" * 100_000] * 3, False),
        ([b"x: b\r\n" * 190], True),
        ([b"x: b\r\n" * 210], False),
    ],
    ids=["long", "too long", "endless", "many", "too many"],
)
async def test_request_head_is_bounded(
    server: uvicorn.Server, fields: list[bytes], *, is_answered: bool
) -> None:
    answer = await answer_to(server, GET, *fields, CLOSES + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK") is is_answered
    # A reset may discard the refusal of a client that still sends.
    assert is_answered or answer.startswith(b"HTTP/1.1 431 ") or not answer


async def test_trailer_is_no_header_of_its_request(server: uvicorn.Server) -> None:
    head = (
        b"POST /a HTTP/1.1\r\nhost: here\r\nx-first: 1\r\ntransfer-encoding: chunked\r\n" + CLOSES + b"\r\n"
    )
    answer = await answer_to(server, head, b"3\r\nabc\r\n0\r\nauthorization: Bearer bob\r\n\r\n")

    facts = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert facts["size"] == 3
    assert "x-first" in facts["names"]
    assert "authorization" not in facts["names"]


async def test_trailers_are_bounded_and_bodies_are_not(server: uvicorn.Server) -> None:
    head = b"POST /a HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n" + CLOSES + b"\r\n"
    chunks = b"3\r\nabc\r\n" * 40_000

    allowed = await answer_to(server, head, chunks, b"0\r\nx: y\r\n\r\n")
    refused = await answer_to(server, head, chunks, b"0\r\n", b"x: y\r\n" * 40_000)

    assert json.loads(allowed.partition(b"\r\n\r\n")[2])["size"] == 120_000
    assert b"200 OK" not in refused


async def test_pipelined_requests_are_parsed_in_turn(server: uvicorn.Server) -> None:
    reading = asyncio.create_task(answer_to(server, (GET + b"\r\n") * 1000, GET + CLOSES + b"\r\n"))
    waiting = [0]
    while not reading.done():
        waiting += [len(each.pipeline) for each in server.server_state.connections]  # type: ignore[union-attr]
        await asyncio.sleep(0)

    assert (await reading).count(b"HTTP/1.1 200") == 1001
    assert 0 < max(waiting) < 200


class Impatient(HttpConnection):
    """A connection that allows half a second without progress."""

    stall_s = 0.5


async def test_client_that_accepts_no_byte_is_disconnected() -> None:
    ended, size = asyncio.Event(), 32 * 1024 * 1024

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        head = [(b"content-length", b"%d" % size), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": bytes(size)})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    async with serving(long, Impatient) as server:
        assert len((await answer_to(server, GET + b"\r\n")).partition(b"\r\n\r\n")[2]) == size
        ended.clear()
        with socket.create_connection(("127.0.0.1", server.config.port)) as stalled:
            stalled.sendall(GET + b"\r\n")
            async with asyncio.timeout(60):
                await ended.wait()
