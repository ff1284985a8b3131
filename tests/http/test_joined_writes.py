"""What is written to a connection in one turn goes out at once, in its order; nothing is held for long."""

import asyncio
from typing import cast

import pytest

from runner.http.joined_writes import JoinedWrites

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Sent:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def write_eof(self) -> None:
        self.writes.append(b"EOF")

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> str:
        return f"{name}?"


def joined() -> tuple[Sent, JoinedWrites]:
    sent = Sent()
    return sent, JoinedWrites(cast("asyncio.Transport", sent), asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write() -> None:
    sent, transport = joined()

    transport.write(b"head ")
    transport.write(b"body")
    before = list(sent.writes)
    await asyncio.sleep(0)
    transport.write(b"next")
    await asyncio.sleep(0)

    assert before == []
    assert sent.writes == [b"head body", b"next"]


async def test_what_is_long_goes_at_once_so_that_its_writer_hears_of_a_slow_client() -> None:
    sent, transport = joined()

    transport.write(b"head ")
    transport.write(b"x" * 20_000)

    assert sent.writes == [b"head " + b"x" * 20_000]


@pytest.mark.parametrize("end", ["close", "write_eof"])
async def test_what_is_left_goes_before_the_end(end: str) -> None:
    sent, transport = joined()

    transport.write(b"last")
    getattr(transport, end)()
    await asyncio.sleep(0)

    assert sent.writes[0] == b"last"
    assert sent.writes[1:] == ([b"EOF"] if end == "write_eof" else [])
    assert sent.closed == (end == "close")


async def test_all_else_is_the_transports_own() -> None:
    _, transport = joined()

    assert transport.get_extra_info("peername") == "peername?"
