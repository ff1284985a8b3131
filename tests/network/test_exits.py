"""The host's half of a policy's network: what one call learns, and how much it may ask for."""

import asyncio
import contextlib
import errno
import gc
import socket
import struct
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from support import counting_turns

from sandbox.loop_share import LoopShare
from sandbox.network.destinations import Destinations
from sandbox.network.dns import RecordType
from sandbox.network.egress import Egress, addresses_of

pytestmark = pytest.mark.anyio

PUBLIC, PRIVATE = "93.184.215.14", "10.1.2.3"
SERVER = ("192.0.2.53", 53)
ONE, OTHER = 100, 200


class Resting(LoopShare):
    """A share that is never available again, and counts rests instead of waiting."""

    rests = 0

    async def rest(self) -> None:
        self.rests += self.rest_s(now=time.monotonic()) > 0


class Book:
    """Stands for the look-up of this machine."""

    def __init__(self, **names: Sequence[str] | Exception) -> None:
        self.names = {name.replace("_", "."): found for name, found in names.items()}
        self.queries: list[tuple[str, RecordType]] = []

    def __call__(self, name: str, kind: RecordType) -> Sequence[str]:
        self.queries.append((name, kind))
        found = self.names.get(name, socket.gaierror(socket.EAI_NONAME, "unknown"))
        if isinstance(found, Exception):
            raise found
        return [address for address in found if (":" in address) is (kind is RecordType.IPV6)]


def exits_of(*rules: str, **names: Sequence[str] | Exception) -> tuple[Egress, Book]:
    book = Book(**names)
    return Egress(destinations=Destinations.parse(rules), look_up=book, share=LoopShare()), book


def question(name: str, kind: RecordType = RecordType.IPV4) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    message = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)
    return struct.pack(">H", len(message)) + message


async def ask(exits: Egress, group: int, name: str, kind: RecordType = RecordType.IPV4) -> tuple[int, int]:
    """Send a question as a worker does; return the code of the answer and the number of its addresses."""
    theirs = exits.own(SERVER, group)
    assert theirs is not None
    reader, writer = await asyncio.open_connection(sock=theirs)
    writer.write(question(name, kind))
    (length,) = struct.unpack(">H", await reader.readexactly(2))
    _, flags, _, count, _, _ = struct.unpack_from(">6H", await reader.readexactly(length))
    writer.close()
    return flags & 0xF, count


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_name_connection_that_ends_before_start_is_closed() -> None:
    exits, _ = exits_of("good.test")
    forgotten, closed = exits.own(SERVER, ONE), exits.own(SERVER, OTHER)
    assert forgotten is not None
    assert closed is not None

    exits.forget(ONE)
    exits.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    with forgotten, closed:
        assert [forgotten.recv(1), closed.recv(1)] == [b"", b""]
    # What nobody closed would be said of it as it is collected.
    gc.collect()


async def test_an_address_is_open_to_the_call_that_asked_for_its_name() -> None:
    exits, _ = exits_of("good.test:80", good_test=[PUBLIC])
    before = exits.allows((PUBLIC, 80), ONE)

    assert await ask(exits, ONE, "GOOD.test") == (0, 1)

    assert before is False
    assert exits.allows((PUBLIC, 80), ONE)
    assert not exits.allows((PUBLIC, 81), ONE)
    assert not exits.allows((PUBLIC, 80), OTHER)


async def test_names_resolved_by_a_call_are_forgotten_with_it() -> None:
    exits, _ = exits_of("good.test:80", good_test=[PUBLIC])
    await ask(exits, ONE, "good.test")
    await ask(exits, ONE, "other.test")

    assert exits.forget(ONE) == ["other.test"]

    assert not exits.allows((PUBLIC, 80), ONE)
    assert exits.forget(ONE) == []


async def test_a_name_that_is_not_allowed_is_never_looked_up() -> None:
    exits, book = exits_of("good.test:80", other_test=[PUBLIC])

    assert await ask(exits, ONE, "other.test") == (3, 0)

    assert book.queries == []


async def test_name_with_nul_is_refused_and_logged_escaped() -> None:
    exits, book = exits_of("*.good.test:80", a_good_test=[PUBLIC])

    assert await ask(exits, ONE, "a.good.test") == (0, 1)
    # Of such a name Python's `getaddrinfo` hands on what stands before the zero byte.
    assert socket.getaddrinfo("127.0.0.1\0.good.test", None)[0][4][0] == "127.0.0.1"
    assert await ask(exits, ONE, "8\0.good.test") == (3, 0)

    assert [name for name, _ in book.queries] == ["a.good.test"]
    assert exits.forget(ONE) == ["8\\x00.good.test"]


@pytest.mark.parametrize("name", ["127.0.0.1\0.good.test", "127.1", "a b", ""])
def test_resolver_call_accepts_names_only(name: str) -> None:
    with pytest.raises(OSError, match="is not a name"):
        addresses_of(name, RecordType.IPV4)


async def test_a_private_address_of_an_allowed_name_stays_closed() -> None:
    exits, _ = exits_of("good.test:80", good_test=[PRIVATE, PUBLIC])

    await ask(exits, ONE, "good.test")

    assert exits.allows((PUBLIC, 80), ONE)
    assert not exits.allows((PRIVATE, 80), ONE)


@pytest.mark.parametrize(
    ("found", "kind", "code"),
    [
        (socket.gaierror(socket.EAI_NONAME, ""), RecordType.IPV4, 3),
        (socket.gaierror(socket.EAI_NONAME, ""), RecordType.IPV6, 0),
        (socket.gaierror(socket.EAI_NODATA, ""), RecordType.IPV4, 0),
        (socket.gaierror(socket.EAI_AGAIN, ""), RecordType.IPV4, 2),
        (socket.gaierror(socket.EAI_FAIL, ""), RecordType.IPV4, 2),
        (UnicodeError(), RecordType.IPV4, 3),
        ([PUBLIC], RecordType.IPV6, 0),
    ],
)
async def test_missing_name_is_answered_with_its_code(
    found: Sequence[str] | Exception, kind: RecordType, code: int
) -> None:
    exits, _ = exits_of("good.test", good_test=found)

    assert await ask(exits, ONE, "good.test", kind) == (code, 0)


async def test_name_server_exists_only_with_reachable_names() -> None:
    named, _ = exits_of("good.test")
    linked = Egress(reach=frozenset({("127.0.0.1", 8080)}), share=LoopShare())

    addresses = named.own(SERVER, ONE)

    assert addresses is not None
    addresses.close()
    assert named.own(("192.0.2.53", 54), ONE) is None
    assert linked.own(SERVER, ONE) is None
    assert linked.allows(("127.0.0.1", 8080), ONE)


async def test_a_name_server_that_is_allowed_itself_is_reached_itself() -> None:
    exits, _ = exits_of("192.0.2.53:53")

    assert exits.own(SERVER, ONE) is None
    assert exits.allows(SERVER, ONE)


async def test_excess_connections_are_refused() -> None:
    exits, _ = exits_of("good.test", good_test=[PUBLIC])
    opened = [exits.own(SERVER, ONE) for _ in range(32)]

    with pytest.raises(ConnectionRefusedError) as refused:
        exits.own(SERVER, ONE)

    assert refused.value.errno == errno.ECONNREFUSED
    for connection in opened:
        assert connection is not None
        connection.close()
    answer = None
    while answer is None:
        # A connection counts until its end was noticed.
        with contextlib.suppress(ConnectionRefusedError):
            answer = await ask(exits, ONE, "good.test")
        await asyncio.sleep(0)
    assert answer == (0, 1)


@pytest.mark.parametrize(
    "data", [b"\0\0", b"\0\x05hello", b"\xff\xff" + b"x" * 65535, b"GET / HTTP/1.1\r\n\r\n" * 4000]
)
async def test_client_sending_invalid_question_is_disconnected(data: bytes) -> None:
    exits, book = exits_of("good.test", good_test=[PUBLIC])
    theirs = exits.own(SERVER, ONE)
    assert theirs is not None
    reader, writer = await asyncio.open_connection(sock=theirs)

    writer.write(data)
    try:
        data_back = await reader.read()
    except ConnectionResetError:
        data_back = b""

    assert data_back == b""
    assert book.queries == []
    writer.close()
    assert await ask(exits, ONE, "good.test") == (0, 1)


async def test_two_questions_on_one_connection_are_both_answered() -> None:
    exits, book = exits_of("good.test", good_test=[PUBLIC, "2606:4700::1"])
    theirs = exits.own(SERVER, ONE)
    assert theirs is not None
    reader, writer = await asyncio.open_connection(sock=theirs)

    writer.write(question("good.test", RecordType.IPV4) + question("good.test", RecordType.IPV6))
    lengths = []
    for _ in range(2):
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        lengths.append(len(await reader.readexactly(length)))

    assert [kind for _, kind in book.queries] == [RecordType.IPV4, RecordType.IPV6]
    assert lengths[1] - lengths[0] == 12
    writer.close()


async def replies(exits: Egress, count: int) -> None:
    """Send questions at once, and receive their replies."""
    theirs = exits.own(SERVER, ONE)
    assert theirs is not None
    reader, writer = await asyncio.open_connection(sock=theirs)
    writer.write(count * question("other.test"))
    for _ in range(count):
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        await reader.readexactly(length)
    writer.close()


async def test_simultaneous_questions_are_charged_and_leave_turns() -> None:
    share = Resting(at_once=0.0, per_s=1e-9)
    exits = Egress(destinations=Destinations.parse(["good.test"]), share=share)

    async with counting_turns() as turns:
        await replies(exits, 200)

    assert turns.count >= 200
    assert share.rests >= 199


async def test_excess_questions_are_answered_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    exits, _ = exits_of("good.test")
    waits: list[float] = []
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", record)
    monkeypatch.setattr("sandbox.network.egress.time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(LoopShare, "rest_s", lambda _self, *, now: 0.0)

    await replies(exits, 1020)

    assert max(waits[:1000]) == 0.0
    assert max(waits) == pytest.approx(0.2, abs=0.011)


async def test_the_connection_is_tcp_so_that_every_client_can_use_it() -> None:
    exits, _ = exits_of("good.test")

    theirs = exits.own(SERVER, ONE)

    assert theirs is not None
    with theirs:
        theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert theirs.getsockname() != theirs.getpeername()


async def test_groups_without_number_are_not_remembered_without_end() -> None:
    exits, _ = exits_of("good.test", good_test=[PUBLIC])

    for group in range(300):
        await ask(exits, group, "good.test")

    assert [exits.allows((PUBLIC, 80), group) for group in (43, 44, 299)] == [False, True, True]


def test_this_machine_finds_its_own_name() -> None:
    assert "127.0.0.1" in addresses_of("localhost", RecordType.IPV4)
