"""Connection of a host or node to a real Redis: messages, claims and the end of a node, without a bucket."""

import asyncio
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import redis
from fleet_world import RedisServer, until
from support import Listening, assert_reads_only_prolong, request

from runner.errors import CallError, Code
from runner.files.sessions import Session
from runner.fleet.connection import FENCE_S, FleetConnection, redis_key
from runner.fleet.engine import FleetEngine
from runner.fleet.messages import TO_NODE, NodeMessage, NodeStatus, SentCall, SessionEnd
from runner.fleet.node import Node
from runner.fleet.seal import FleetKey
from runner.fleet.shared_sessions import SharedSessions
from runner.fleet.shared_state import SharedState
from runner.settings.settings import Settings
from runner.toolset.session_state import SessionState
from runner.users.events import Events
from runner.worker.wire import RequestFacts

pytestmark = pytest.mark.anyio

ANN = Session(user="ann", name="s")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def connection(server: RedisServer, tmp_path: Path) -> AsyncIterator[FleetConnection]:
    key = tmp_path / "fleet.key"
    key.write_text("x" * 40)
    key.chmod(0o600)
    settings = Settings(redis_url=server.url, fleet_key_file=key)
    async with FleetConnection.open(settings) as made:
        yield made


def _into(received: list[NodeMessage]) -> Callable[[NodeMessage], Awaitable[None]]:
    async def receive(message: NodeMessage) -> None:
        received.append(message)

    return receive


class _NotingKey(FleetKey):
    """A key that notes the threads in which it is used."""

    threads: ClassVar[set[int]] = set()

    def seal(self, record: Mapping[str, Any], *, to: str) -> bytes:
        self.threads.add(threading.get_ident())
        return super().seal(record, to=to)

    def opened(self, sealed: bytes, *, to: str) -> dict[str, Any]:
        self.threads.add(threading.get_ident())
        return super().opened(sealed, to=to)


@pytest.mark.parametrize(("length", "is_here"), [(100, True), (1_000_000, False)])
async def test_long_messages_are_sealed_off_the_event_loop(
    connection: FleetConnection, length: int, *, is_here: bool
) -> None:
    key = _NotingKey(b"x" * 40, 10_000_000)
    connection = replace(connection, key=key)
    sent, received = NodeMessage(call="c", kind="note", body={"text": "t" * length}), list[NodeMessage]()
    key.threads.clear()

    reading = asyncio.create_task(connection.consume("me", NodeMessage.model_validate, _into(received)))
    await connection.send("me", sent)
    await until(lambda: received)
    reading.cancel()
    await asyncio.wait({reading})

    assert received == [sent]
    assert (threading.get_ident() in key.threads) is is_here


async def test_more_commands_than_connections_are_all_answered(connection: FleetConnection) -> None:
    sent = NodeMessage(call="c", kind="note")

    await asyncio.gather(*(connection.send("me", sent) for _ in range(500)))

    assert await connection.redis.xlen("toolcell:stream:me") == 500


async def test_call_that_only_reads_prolongs_session_state(connection: FleetConnection) -> None:
    writer, reader = (
        SharedState(redis=connection.redis, state=SessionState(), stay_s=stay_s) for stay_s in (60.0, 600.0)
    )
    writer.state.put("ann", None, "k", {"v": 1}, None)
    await writer.store("ann")
    (key,) = await connection.redis.keys("*state*")
    before = await connection.redis.pttl(key)

    await reader.fetch("ann")

    assert reader.state.get("ann", None, "k")[0] == {"v": 1}
    assert before <= 60_000 < await connection.redis.pttl(key)


class _LosingRedis(redis.Redis):
    """A client that loses the reply to its first transaction."""

    lost = 0

    def transaction(self, *arguments: Any, **options: Any) -> Any:
        reply = super().transaction(*arguments, **options)
        self.lost += 1
        if self.lost == 1:
            raise redis.exceptions.TimeoutError("lost")
        return reply


def test_claim_whose_reply_is_lost_does_not_block_session(server: RedisServer) -> None:
    with _LosingRedis.from_url(server.url) as client, server.client() as other:
        with SharedSessions(redis=other).using(ANN):
            pass
        with pytest.raises(CallError) as failed:
            SharedSessions(redis=client).claim(ANN)
        again = SharedSessions(redis=other).claim(ANN)

    assert failed.value.code is Code.E_STORE
    assert again is not None


def test_session_in_use_or_claimed_is_not_claimed(server: RedisServer) -> None:
    with server.client() as client:
        sessions = SharedSessions(redis=client)
        with sessions.using(ANN):
            in_use = sessions.claim(ANN)
        not_idle = sessions.claim(ANN, idle_s=60)
        right = sessions.claim(ANN)
        assert right is not None
        claimed = sessions.claim(ANN)
        right.forget()
        right.release()
        ended = sessions.claim(ANN)

    assert (in_use, not_idle, claimed, ended) == (None, None, None, None)


def test_malformed_session_in_redis_is_skipped(server: RedisServer) -> None:
    with server.client() as client:
        sessions = SharedSessions(redis=client)
        client.zadd("toolcell:sessions", dict.fromkeys((b"\xff", "{", "1", '["ann"]'), 1.0))
        with sessions.using(ANN):
            known = list(sessions.known())

    assert known == [ANN]


def test_read_begins_no_session_of_a_fleet(server: RedisServer) -> None:
    with server.client() as client:
        assert_reads_only_prolong(SharedSessions(redis=client), ANN)


def test_session_in_use_again_is_not_forgotten(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.fleet.shared_sessions.END_S", 0.3)
    with server.client() as client:
        sessions = SharedSessions(redis=client)
        with sessions.using(ANN):
            pass
        right = sessions.claim(ANN)
        assert right is not None
        right.forget()
        # It waits until the right has run out.
        with sessions.using(ANN):
            right.release()
            known = list(sessions.known())

    assert known == [ANN]


class _Toolset(SimpleNamespace):
    """A toolset whose sessions end slowly and which executes nothing."""

    def __init__(self) -> None:
        super().__init__(
            settings=SimpleNamespace(max_calls=1, call_limits={}, session_idle_s=60.0),
            state=SessionState(),
            events=Events(),
            rates=SimpleNamespace(limits={}),
            ending=asyncio.Event(),
            ended=list[str](),
        )

    def share(self, sessions: object) -> None:
        del sessions

    def effective(self, tool: str | None) -> Any:
        del tool
        return SimpleNamespace(deadlines=None)

    async def end_session(self, session: str) -> None:
        self.ending.set()
        await asyncio.sleep(0.1)
        self.ended.append(session)


async def test_stopping_node_awaits_end_of_sessions(connection: FleetConnection) -> None:
    toolset: Any = _Toolset()

    async with Node.open(toolset, connection, "r") as node:
        await connection.send(node.name, SessionEnd(session="s"))
        await toolset.ending.wait()

    assert toolset.ended == ["s"]


async def test_node_is_fenced_once_redis_is_silent_for_long(
    connection: FleetConnection, server: RedisServer
) -> None:
    toolset: Any = _Toolset()

    async with Node.open(toolset, connection, "r") as node:
        # Not for as long as a node may be without Redis.
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(FENCE_S - 3)
        server.signal(signal.SIGCONT)
        await asyncio.sleep(1.5)
        is_fenced = node.fenced.is_set()
        server.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        await node.fenced.wait()
        fenced_s = time.monotonic() - stopped
        server.signal(signal.SIGCONT)

    assert not is_fenced
    assert fenced_s > FENCE_S - 2


async def test_node_opened_without_redis_is_fenced(connection: FleetConnection, server: RedisServer) -> None:
    toolset: Any = _Toolset()
    server.kill()

    async with Node.open(toolset, connection, "r") as node:
        await node.fenced.wait()

    assert node.calls == {}


async def test_call_whose_state_cannot_be_read_gets_an_end(
    connection: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(state: SharedState, user: str) -> None:
        raise redis.exceptions.ResponseError(f"WRONGTYPE {state} {user}")

    monkeypatch.setattr(SharedState, "fetch", fetch)
    toolset: Any = _Toolset()
    facts = RequestFacts(request_id=1, protocol="2025-11-25", session_id="", transport="stdio")
    sent = SentCall(
        call="c",
        host="h",
        user="ann",
        session=None,
        method="tools/call",
        params={},
        facts=facts,
        is_awaited=True,
    )
    received = list[NodeMessage]()

    async with Node.open(toolset, connection, "r") as node:
        await connection.send(node.name, sent)
        reading = asyncio.create_task(connection.consume("h", NodeMessage.model_validate, _into(received)))
        await until(lambda: received)
        reading.cancel()
        await asyncio.wait({reading})

    (end,) = received
    assert (end.kind, end.body["failure"]["code"]) == ("end", "E_INTERNAL")


def _toolset_of_host(server: RedisServer, folder: Path) -> Any:
    settings = Settings(redis_url=server.url, fleet_key_file=folder / "fleet.key")
    library = SimpleNamespace(persist=True)
    return SimpleNamespace(targets=[], settings=settings, library=library, events=Events())


async def _reading(
    connection: FleetConnection, engine: FleetEngine, receive: Callable[[Any], Awaitable[None]]
) -> "asyncio.Task[None]":
    """Let a node `n` accept calls, and read its messages."""
    status = NodeStatus(beat=1, capacity=1, calls={}).model_dump()
    await connection.redis.set(redis_key("node", "n"), connection.key.seal(status, to="toolcell:node:n"))
    await connection.redis.sadd(redis_key("nodes", engine.release), "n")
    return asyncio.create_task(connection.consume("n", TO_NODE.validate_python, receive))


async def test_node_whose_name_is_not_text_is_removed(
    connection: FleetConnection, server: RedisServer, tmp_path: Path
) -> None:
    async with FleetEngine.open(_toolset_of_host(server, tmp_path)) as engine:
        nodes = redis_key("nodes", engine.release)
        await connection.redis.sadd(nodes, b"\xff")
        async with asyncio.timeout(30):
            while await connection.redis.exists(nodes):
                await asyncio.sleep(0.02)


async def test_call_whose_start_redis_lost_is_not_sent_again(
    connection: FleetConnection, server: RedisServer, tmp_path: Path
) -> None:
    toolset, listener = _toolset_of_host(server, tmp_path), cast("Any", Listening())
    spec: Any = SimpleNamespace(is_idempotent=False)
    received, log = list[str](), tmp_path / "appendonlydir"

    async def start(sent: Any) -> None:
        received.append(sent.call)
        shutil.copytree(log, tmp_path / "before", dirs_exist_ok=True)
        # The node starts the call, and dies with Redis, which has not stored that.
        await connection.redis.delete(redis_key("begin", sent.call))
        server.kill()
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "before", log)
        await asyncio.to_thread(server.start)
        server.client().delete(redis_key("node", "n"))

    async with FleetEngine.open(toolset) as engine:
        reading = await _reading(connection, engine, start)
        with pytest.raises(CallError) as failed:
            await engine.call(request("ann", "once", {}, listener), spec, listener)
        reading.cancel()
        await asyncio.wait({reading})

    assert (failed.value.code, failed.value.details.get("begun")) == (Code.E_CRASHED, True)
    assert len(received) == 1


async def test_call_that_was_not_sent_is_sent_again(
    connection: FleetConnection, server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolset, listener = _toolset_of_host(server, tmp_path), cast("Any", Listening())
    spec: Any = SimpleNamespace(is_idempotent=False)
    send, broken, arrived = FleetConnection.send, [redis.exceptions.ConnectionError("reset")], asyncio.Event()

    async def breaking(self: FleetConnection, to: str, message: Any) -> None:
        if broken:
            raise broken.pop()
        await send(self, to, message)

    async def receive(sent: Any) -> None:
        arrived.set()

    monkeypatch.setattr(FleetConnection, "send", breaking)
    async with FleetEngine.open(toolset) as engine:
        reading = await _reading(connection, engine, receive)
        calling = asyncio.create_task(engine.call(request("ann", "once", {}, listener), spec, listener))
        waiting = asyncio.create_task(arrived.wait())
        await asyncio.wait({calling, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, calling, waiting):
            task.cancel()
        await asyncio.wait({reading, calling, waiting})

    assert (broken, arrived.is_set()) == ([], True)
