"""The private door: one real listener, and callers that open more than they need."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from runner.http.loopback import Loopback

ASK = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
ONE, OTHER = "127.9.9.1", "127.9.9.2"


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@asynccontextmanager
async def opened() -> AsyncIterator[Loopback]:
    loopback = await Loopback.open([Route("/", hello)])
    try:
        yield loopback
    finally:
        await loopback.close()


async def connected(
    stack: AsyncExitStack, loopback: Loopback, source: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*loopback.address, local_addr=(source, 0))
    stack.callback(writer.close)
    return reader, writer


async def first_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a request and return the first line of the answer; nothing if the connection ended."""
    try:
        writer.write(ASK)
        return await reader.readline()
    except ConnectionError:
        return b""


def test_caller_has_a_hundred_connections_at_most() -> None:
    async def take_responses() -> list[bytes]:
        async with opened() as loopback, AsyncExitStack() as stack:
            all_of_it = [await connected(stack, loopback, ONE) for _ in range(130)]
            return [await first_line(*connection) for connection in all_of_it]

    lines = asyncio.run(take_responses())

    assert [line.split(b" ")[1:2] for line in lines] == [[b"200"]] * 100 + [[]] * 30


def test_connections_counted_per_caller() -> None:
    async def take_responses() -> tuple[bytes, bytes]:
        async with opened() as loopback, AsyncExitStack() as stack:
            all_of_it = [await connected(stack, loopback, ONE) for _ in range(130)]
            more = await connected(stack, loopback, ONE)
            other = await connected(stack, loopback, OTHER)
            answers = await first_line(*more), await first_line(*other)
            assert len(all_of_it) == 130
            return answers

    refused, served = asyncio.run(take_responses())

    assert refused == b""
    assert served.startswith(b"HTTP/1.1 200 ")


def test_ended_connection_frees_place_for_next() -> None:
    async def take_responses() -> bytes:
        async with opened() as loopback:
            for _ in range(3):
                async with AsyncExitStack() as stack:
                    for _ in range(60):
                        connection = await connected(stack, loopback, ONE)
                        line = await first_line(*connection)
                await _until_nobody_is_there(loopback)
            return line

    assert asyncio.run(take_responses()).startswith(b"HTTP/1.1 200 ")


async def _until_nobody_is_there(loopback: Loopback) -> None:
    while any(
        each.laddr and each.laddr.port == loopback.port and each.status in ("ESTABLISHED", "CLOSE_WAIT")
        for each in psutil.Process().net_connections("tcp")
    ):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1", b"200"), ("elsewhere.example", b"400"), ("localhost", b"400")]
)
def test_only_own_address_accepted_as_name(host: str, status: bytes) -> None:
    async def take_responses() -> bytes:
        async with opened() as loopback:
            with socket.socket() as mine:
                mine.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(mine, loopback.address)
                await loop.sock_sendall(mine, f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                return await loop.sock_recv(mine, 4096)

    assert asyncio.run(take_responses()).split(b" ")[1] == status
