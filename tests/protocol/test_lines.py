"""Messages as lines of JSON over real pipes and files: whole, in order, with slow or cancelled peers."""

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
from support import counting_turns

from runner.protocol import lines
from runner.protocol.lines import MOST_UNREADABLE, IncomingLines, OutgoingLines
from runner.protocol.messages import Unreadable, read_message
from sandbox.loop_share import LoopShare

pytestmark = pytest.mark.anyio

LARGE = "x" * 300_000


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    ends = list(os.pipe())
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        if end >= 0:
            os.close(end)


def notification(method: str, **params: Any) -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))


def method_of(message: SessionMessage | Exception) -> str:
    assert isinstance(message, SessionMessage)
    return str(message.message.model_dump()["method"])


def line(method: str) -> bytes:
    return b'{"jsonrpc": "2.0", "method": "%s"}\n' % method.encode()


async def write_all(end: int, data: bytes) -> None:
    """Write to a pipe as fast as it is read."""
    loop, left = asyncio.get_running_loop(), memoryview(data)
    while left:
        writable = asyncio.Event()
        loop.add_writer(end, writable.set)
        await writable.wait()
        loop.remove_writer(end)
        left = left[os.write(end, left) :]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All texts that are read."""
    texts: list[str] = []

    def noted(text: str) -> Any:
        texts.append(text)
        return read_message(text)

    monkeypatch.setattr(lines, "read_message", noted)
    return texts


def read_all(end: int) -> bytes:
    os.set_blocking(end, True)
    pieces = []
    while piece := os.read(end, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


async def test_messages_arrive_whole_and_in_order_at_any_size(pipe: list[int]) -> None:
    incoming, outgoing = IncomingLines(pipe[0]), OutgoingLines(pipe[1])
    sent = [notification(f"n/{number}", text=LARGE if number % 3 == 0 else "short") for number in range(12)]

    async def send() -> None:
        for message in sent:
            await outgoing.send(message)

    sending = asyncio.create_task(send())
    came = [await incoming.receive() for _ in sent]
    await sending

    assert [message.message for message in came if isinstance(message, SessionMessage)] == [
        message.message for message in sent
    ]


async def test_invalid_line_yields_error_then_next_message(pipe: list[int]) -> None:
    incoming = IncomingLines(pipe[0])
    spoiled = json.dumps({"jsonrpc": "2.0", "method": "spoiled"}).encode().replace(b"spoiled", b"spoi\xffed")
    os.write(pipe[1], b'no json\n\n{"jsonrpc": "2.0"}\r\n{"jsonrpc": "2.0", "method": "fine"}\r\n' + spoiled)
    os.close(pipe[1])
    pipe[1] = -1

    came = [message async for message in incoming]

    # A blank line does not count.
    assert [isinstance(message, Exception) for message in came] == [True, True, False, False]
    assert [method_of(message) for message in came[2:]] == ["fine", "spoi\ufffded"]
    with pytest.raises(anyio.EndOfStream):
        await incoming.receive()


async def test_blank_lines_ignored_in_any_number(pipe: list[int], read: list[str]) -> None:
    incoming = IncomingLines(pipe[0])
    blank = b"\n" * 300_000 + b" \t\r\n" * 50_000
    sending = asyncio.create_task(write_all(pipe[1], blank + line("one") + blank + line("two")))

    came = [method_of(await incoming.receive()) for _ in range(2)]
    await sending

    assert came == ["one", "two"]
    assert len(read) == 2


async def test_line_read_when_taken_and_not_before(pipe: list[int], read: list[str]) -> None:
    incoming = IncomingLines(pipe[0])
    os.write(pipe[1], line("one") + line("two") + line("three"))

    counts = []
    for _ in range(3):
        await incoming.receive()
        counts.append(len(read))

    assert counts == [1, 2, 3]


@pytest.mark.parametrize("data", [line("one"), b"1\n"])
async def test_loop_yields_between_lines(
    pipe: list[int], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_TURN_S", -1.0, raising=False)
    incoming = IncomingLines(pipe[0])
    os.write(pipe[1], data * 1000)

    async with counting_turns() as turns:
        for _ in range(1000):
            await incoming.receive()

    assert turns.count >= 999


async def test_reader_rests_after_long_loop_use(pipe: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    incoming = IncomingLines(pipe[0])
    os.write(pipe[1], line("one") + line("two"))
    # The control: nobody has yet.
    assert method_of(await incoming.receive()) == "one"

    monkeypatch.setattr(LoopShare, "rest_s", lambda _self, *, now: 1e9)
    second = asyncio.create_task(incoming.receive())
    await asyncio.wait({second}, timeout=0.05)

    assert not second.done()
    second.cancel()


async def test_invalid_lines_alone_end_connection(
    pipe: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long it takes here to read them.
    monkeypatch.setattr(lines, "_UNREADABLE_PER_S", 0.0)
    incoming = IncomingLines(pipe[0])
    sending = asyncio.create_task(write_all(pipe[1], b"x\n" * MOST_UNREADABLE + line("unheard")))

    came = [item async for item in incoming]
    await sending

    assert len(came) == MOST_UNREADABLE
    assert all(isinstance(item, Exception) for item in came)
    assert incoming.problem == "it sent 10,000 lines that are not messages"
    assert caplog.messages.count("connection closed: invalid lines") == 1


async def test_invalid_lines_at_intervals_keep_connection(
    pipe: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_UNREADABLE", 50)
    monkeypatch.setattr(lines, "_UNREADABLE_PER_S", 1e9)
    incoming = IncomingLines(pipe[0])
    os.write(pipe[1], b"x\n" * 200 + line("heard"))
    os.close(pipe[1])
    pipe[1] = -1

    came = [item async for item in incoming]

    assert (len(came), incoming.problem) == (201, None)


async def test_invalid_lines_between_messages_keep_connection(
    pipe: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_UNREADABLE", 50)
    incoming = IncomingLines(pipe[0])
    os.write(pipe[1], (b"x\n" * 49 + line("heard")) * 4)
    os.close(pipe[1])
    pipe[1] = -1

    came = [item async for item in incoming]

    assert [isinstance(item, Exception) for item in came].count(False) == 4
    assert incoming.problem is None


async def test_lone_surrogate_damages_string_not_message(pipe: list[int]) -> None:
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


async def test_messages_in_file_read_to_end(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"jsonrpc": "2.0", "method": f"n/{n}", "params": {"x": LARGE}}) for n in range(3)]
    file.write_text("\n".join(lines))

    with file.open("rb") as opened:
        came = [method_of(message) async for message in IncomingLines(opened.fileno())]

    assert came == ["n/0", "n/1", "n/2"]


async def test_null_device_has_nothing_to_read() -> None:
    with open(os.devnull, "rb") as opened:
        came = [message async for message in IncomingLines(opened.fileno())]

    assert came == []


async def test_cancelled_sender_leaves_whole_line(pipe: list[int]) -> None:
    outgoing = OutgoingLines(pipe[1])
    sending = asyncio.create_task(outgoing.send(notification("large", text=LARGE)))
    await asyncio.wait({sending}, timeout=0.05)

    sending.cancel()
    await asyncio.wait({sending})
    after = asyncio.create_task(outgoing.send(notification("after")))
    reading = asyncio.create_task(asyncio.to_thread(read_all, pipe[0]))
    await after
    os.close(pipe[1])
    pipe[1] = -1
    came = [json.loads(line) for line in (await reading).splitlines()]

    assert sending.cancelled()
    assert [message["method"] for message in came] == ["large", "after"]
    assert came[0]["params"]["text"] == LARGE


async def test_close_waits_for_send(pipe: list[int]) -> None:
    outgoing = OutgoingLines(pipe[1])
    sending = asyncio.create_task(outgoing.send(notification("large", text=LARGE)))
    await asyncio.wait({sending}, timeout=0.05)
    sending.cancel()

    reading = asyncio.create_task(asyncio.to_thread(read_all, pipe[0]))
    await outgoing.aclose()
    os.close(pipe[1])
    pipe[1] = -1

    assert json.loads(await reading)["params"]["text"] == LARGE
    with pytest.raises(anyio.ClosedResourceError):
        await outgoing.send(notification("more"))


async def test_send_to_gone_reader_fails(pipe: list[int]) -> None:
    outgoing = OutgoingLines(pipe[1])
    await outgoing.send(notification("heard"))
    os.close(pipe[0])
    pipe[0] = -1

    with pytest.raises(anyio.BrokenResourceError):
        await outgoing.send(notification("not heard"))


async def test_waiting_reader_receives_end_of_closed_stream(pipe: list[int]) -> None:
    incoming = IncomingLines(pipe[0])
    waiting = asyncio.create_task(incoming.receive())
    await asyncio.wait({waiting}, timeout=0.01)

    await incoming.aclose()

    with pytest.raises(anyio.EndOfStream):
        await waiting


ANSWER = '{"jsonrpc": "2.0", "id": 7, "result": {"a": "%s"}}'
LAST = '{"jsonrpc": "2.0", "result": {"a": "%s"}, "id": 7}'


@pytest.mark.parametrize("form", [ANSWER, LAST])
@pytest.mark.parametrize("size", [20_000, 3_000_000])
async def test_overlong_line_skipped_and_its_request_answered(pipe: list[int], form: str, size: int) -> None:
    incoming = IncomingLines(pipe[0], most_bytes=10_000)
    data = line("before") + (form % ("x" * size)).encode() + b"\n" + line("after")
    sending = asyncio.create_task(write_all(pipe[1], data))

    before, too_long, after = [await incoming.receive() for _ in range(3)]
    await sending

    assert (method_of(before), method_of(after)) == ("before", "after")
    assert isinstance(too_long, Unreadable)
    assert (too_long.id, too_long.is_request) == (7, False)
    assert str(too_long).startswith("the answer has more than 10,000 bytes, which is as long as it may be; ")
    assert incoming.problem is None


async def test_consecutive_overlong_lines_each_reported(pipe: list[int]) -> None:
    incoming = IncomingLines(pipe[0], most_bytes=1000)
    sizes = (300_000, 2000, 900, 70_000)
    data = [(ANSWER % ("x" * size)).replace("7", str(size)).encode() + b"\n" for size in sizes]
    sending = asyncio.create_task(write_all(pipe[1], b"".join(data)))

    came = [await incoming.receive() for _ in data]
    await sending

    assert [item.id for item in came if isinstance(item, Unreadable)] == [300_000, 2000, 70_000]
    assert [isinstance(item, SessionMessage) for item in came] == [False, False, True, False]


async def test_endless_overlong_line_ends_connection(
    pipe: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 1_000_000)
    incoming = IncomingLines(pipe[0], most_bytes=1000)
    sending = asyncio.create_task(write_all(pipe[1], line("before") + b"x" * 2_000_000))

    came = [method_of(item) async for item in incoming]
    sending.cancel()

    assert came == ["before"]
    assert incoming.problem == "it said a line of more than 1,000,000 bytes"
    assert caplog.messages == ["connection closed: line too long"]


async def test_endless_line_ends_connection(pipe: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.protocol.lines.MOST_LINE_BYTES", 10_000)
    incoming = IncomingLines(pipe[0])
    message = {"jsonrpc": "2.0", "method": "one"}
    os.write(pipe[1], json.dumps(message).encode() + b"\n" + b"x" * 20_000)

    came = [method_of(item) async for item in incoming]

    assert came == ["one"]
