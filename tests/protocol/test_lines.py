"""Messages as lines of JSON over real pipes and files: whole, in order, whoever is slow or cancelled."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from runner.protocol.lines import IncomingLines, OutgoingLines

pytestmark = pytest.mark.anyio

LARGE = "x" * 300_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    ends = list(os.pipe())
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        if end >= 0:
            os.close(end)


def said(method: str, **params: Any) -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))


def method_of(message: SessionMessage | Exception) -> str:
    assert isinstance(message, SessionMessage)
    return str(message.message.model_dump()["method"])


def read_all(end: int) -> bytes:
    os.set_blocking(end, True)
    pieces = []
    while piece := os.read(end, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


async def test_messages_arrive_whole_and_in_order_however_large(pipe: list[int]) -> None:
    incoming, outgoing = IncomingLines(pipe[0]), OutgoingLines(pipe[1])
    sent = [said(f"n/{number}", text=LARGE if number % 3 == 0 else "short") for number in range(12)]

    async def send() -> None:
        for message in sent:
            await outgoing.send(message)

    sending = asyncio.create_task(send())
    came = [await incoming.receive() for _ in sent]
    await sending

    assert [message.message for message in came if isinstance(message, SessionMessage)] == [
        message.message for message in sent
    ]


async def test_what_is_no_message_comes_as_an_error_and_the_next_message_after_it(pipe: list[int]) -> None:
    incoming = IncomingLines(pipe[0])
    spoiled = json.dumps({"jsonrpc": "2.0", "method": "spoiled"}).encode().replace(b"spoiled", b"spoi\xffed")
    os.write(pipe[1], b'no json\n\n{"jsonrpc": "2.0"}\r\n{"jsonrpc": "2.0", "method": "fine"}\r\n' + spoiled)
    os.close(pipe[1])
    pipe[1] = -1

    came = [message async for message in incoming]

    assert [isinstance(message, Exception) for message in came] == [True, True, True, False, False]
    assert [method_of(message) for message in came[3:]] == ["fine", "spoi\ufffded"]
    with pytest.raises(anyio.EndOfStream):
        await incoming.receive()


async def test_half_of_a_surrogate_pair_spoils_a_string_and_not_the_message(pipe: list[int]) -> None:
    incoming = IncomingLines(pipe[0])
    halves = r'{"\udc00": ["a\ud800", "\ud83d\ud83d\ude00", "\\ud800", "\\\uD800x", "\ud83d\ude00"]}'
    os.write(pipe[1], b'{"jsonrpc": "2.0", "method": "n", "params": %s}\n' % halves.encode())
    os.write(pipe[1], b'{"jsonrpc": "2.0", "method": "n", "params": {"a": "\\ud800"\n')

    whole, broken = await incoming.receive(), await incoming.receive()

    assert isinstance(whole, SessionMessage)
    assert whole.message.model_dump()["params"] == {
        "?": ["a?", "?\N{GRINNING FACE}", "\\ud800", "\\?x", "\N{GRINNING FACE}"]
    }
    assert isinstance(broken, ValueError)


async def test_messages_in_a_file_are_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"jsonrpc": "2.0", "method": f"n/{n}", "params": {"x": LARGE}}) for n in range(3)]
    file.write_text("\n".join(lines))

    with file.open("rb") as opened:
        came = [method_of(message) async for message in IncomingLines(opened.fileno())]

    assert came == ["n/0", "n/1", "n/2"]


async def test_nothing_is_there_to_read_in_the_null_device() -> None:
    with open(os.devnull, "rb") as opened:
        came = [message async for message in IncomingLines(opened.fileno())]

    assert came == []


async def test_who_is_cancelled_while_sending_leaves_a_whole_line(pipe: list[int]) -> None:
    outgoing = OutgoingLines(pipe[1])
    sending = asyncio.create_task(outgoing.send(said("large", text=LARGE)))
    await asyncio.wait({sending}, timeout=0.05)

    sending.cancel()
    await asyncio.wait({sending})
    after = asyncio.create_task(outgoing.send(said("after")))
    reading = asyncio.create_task(asyncio.to_thread(read_all, pipe[0]))
    await after
    os.close(pipe[1])
    pipe[1] = -1
    came = [json.loads(line) for line in (await reading).splitlines()]

    assert sending.cancelled()
    assert [message["method"] for message in came] == ["large", "after"]
    assert came[0]["params"]["text"] == LARGE


async def test_the_end_waits_for_what_is_being_sent(pipe: list[int]) -> None:
    outgoing = OutgoingLines(pipe[1])
    sending = asyncio.create_task(outgoing.send(said("large", text=LARGE)))
    await asyncio.wait({sending}, timeout=0.05)
    sending.cancel()

    reading = asyncio.create_task(asyncio.to_thread(read_all, pipe[0]))
    await outgoing.aclose()
    os.close(pipe[1])
    pipe[1] = -1

    assert json.loads(await reading)["params"]["text"] == LARGE
    with pytest.raises(anyio.ClosedResourceError):
        await outgoing.send(said("more"))


async def test_to_a_reader_that_is_gone_nothing_can_be_sent(pipe: list[int]) -> None:
    outgoing = OutgoingLines(pipe[1])
    await outgoing.send(said("heard"))
    os.close(pipe[0])
    pipe[0] = -1

    with pytest.raises(anyio.BrokenResourceError):
        await outgoing.send(said("not heard"))


async def test_who_waits_for_a_message_hears_that_the_stream_was_closed(pipe: list[int]) -> None:
    incoming = IncomingLines(pipe[0])
    waiting = asyncio.create_task(incoming.receive())
    await asyncio.wait({waiting}, timeout=0.01)

    await incoming.aclose()

    with pytest.raises(anyio.EndOfStream):
        await waiting


async def test_a_line_that_never_ends_ends_the_connection(
    pipe: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.protocol.lines.MOST_LINE_BYTES", 10_000)
    incoming = IncomingLines(pipe[0])
    message = {"jsonrpc": "2.0", "method": "one"}
    os.write(pipe[1], json.dumps(message).encode() + b"\n" + b"x" * 20_000)

    came = [method_of(item) async for item in incoming]

    assert came == ["one"]
