"""Ends of message lines: cut off, delayed, unread; over real pipes, sockets and terminals."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification
from support import becomes

from runner.protocol import lines
from runner.protocol.lines import IncomingLines, OutgoingLines

pytestmark = pytest.mark.anyio

LARGE = "x" * 300_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def notification(method: str, **params: Any) -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))


def line(method: str, text: str = "") -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": {"text": text}}
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


def dumped(message: SessionMessage | Exception) -> dict[str, Any]:
    assert isinstance(message, SessionMessage)
    dump: dict[str, Any] = message.message.model_dump()
    return dump


async def test_message_sent_byte_by_byte_is_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    incoming = IncomingLines(ours.fileno())
    waiting = asyncio.create_task(incoming.receive())

    for byte in line("slow", "ü€😀"):
        theirs.send(bytes([byte]))
        await asyncio.sleep(0)

    assert dumped(await waiting)["params"]["text"] == "ü€😀"


async def test_unread_message_stays_with_sender(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    incoming = IncomingLines(ours.fileno())
    theirs.send(line("first"))
    await incoming.receive()
    sent = 0

    for _ in range(20_000):
        with contextlib.suppress(BlockingIOError):
            theirs.send(line("n"))
            sent += 1
        await asyncio.sleep(0)
    came = [dumped(await incoming.receive())["method"] for _ in range(sent)]

    assert sent < 20_000
    assert came == ["n"] * sent


async def test_close_waits_for_send_even_if_cancelled(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    outgoing = OutgoingLines(ours.fileno())
    sending = asyncio.create_task(outgoing.send(notification("large", text=LARGE)))
    await asyncio.sleep(0)
    reading = asyncio.create_task(asyncio.to_thread(theirs.makefile("rb").readline))

    with anyio.CancelScope() as scope:
        scope.cancel()
        await outgoing.aclose()
    sending.cancel()
    ours.shutdown(socket.SHUT_WR)

    assert json.loads(await reading)["params"]["text"] == LARGE


async def test_interrupted_close_releases_its_descriptor(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, _theirs = pair
    outgoing = OutgoingLines(ours.fileno())
    sending = asyncio.create_task(outgoing.send(notification("large", text=LARGE)))
    await asyncio.sleep(0)
    ending = asyncio.create_task(outgoing.aclose())
    await asyncio.sleep(0)
    ending.cancel()
    sending.cancel()
    await asyncio.wait({ending, sending})

    assert ending.cancelled()
    assert not asyncio.get_running_loop().remove_writer(ours.fileno())


async def test_sender_to_non_reading_client_receives_close(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_LAST_WORDS_S", 0.01)
    ours, _theirs = pair
    outgoing = OutgoingLines(ours.fileno())
    sending = asyncio.create_task(outgoing.send(notification("large", text=LARGE)))
    await asyncio.sleep(0)

    await outgoing.aclose()

    with pytest.raises(anyio.BrokenResourceError):
        await sending


async def test_reader_stopping_mid_message_breaks_senders(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    outgoing = OutgoingLines(ours.fileno())
    several = [asyncio.create_task(outgoing.send(notification(f"n/{n}", text=LARGE))) for n in range(3)]
    await asyncio.sleep(0)

    theirs.recv(10)
    theirs.close()
    ended = await asyncio.gather(*several, return_exceptions=True)

    assert [type(error) for error in ended] == [anyio.BrokenResourceError] * 3
    assert not asyncio.get_running_loop().remove_writer(ours.fileno())
    await outgoing.aclose()


async def test_terminal_read_line_by_line_to_its_end() -> None:
    main, terminal = os.openpty()
    try:
        incoming = IncomingLines(terminal)
        waiting = asyncio.create_task(incoming.receive())
        os.write(main, line("typed"))
        typed = dumped(await waiting)
        blocks = os.get_blocking(terminal)
        after = asyncio.create_task(incoming.receive())
        os.write(main, b"\x04")
        assert await becomes(after.done)
    finally:
        os.close(main)
        os.close(terminal)

    assert typed["method"] == "typed"
    assert blocks
    assert isinstance(after.exception(), anyio.EndOfStream)
