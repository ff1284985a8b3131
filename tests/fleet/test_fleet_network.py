"""Two hosts and three worker nodes in network namespaces, under load, while one thing after the other breaks.

One of the nodes has a clock that is wrong by hours, all the time. In the end a release follows another.
No acknowledged call is lost silently, none runs twice unless its tool allows it, no process is left, and
every file that a call has named is whole. These tests run as root.
"""

import asyncio
import hashlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fleet_network import Network, Relay, network
from fleet_world import TOOLS, NodeProcess, RedisServer, World, alive, text_of, until, wrong_by

from runner.files.my_files import open_library
from runner.fleet.messages import release_of
from runner.settings.settings import Settings
from runner.store.s3.bucket import BucketAddress
from runner.store.spool import Spool

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.needs_s3,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.timeout(900),
]

USERS = ("ann", "bob")

StdioClient = Client[StdioTransport]


@dataclass
class Load:
    """Calls without end, of several kinds, and how each of them ended."""

    world: World
    running: bool = True
    ended: Counter[str] = field(default_factory=Counter)
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    once: dict[str, bool] = field(default_factory=dict)
    again: dict[str, bool] = field(default_factory=dict)
    orphans: set[int] = field(default_factory=set)

    async def of_user(self, client: StdioClient, user: str, number: int) -> None:
        turn = 0
        while self.running:
            turn += 1
            marker = f"{user}{number}-{turn}"
            runs = {"runs": str(self.world.folder / "runs"), "marker": marker, "seconds": 0.05}
            self.once[f"once-{marker}"] = await self.done(
                client, "once", {**runs, "marker": f"once-{marker}"}
            )
            self.again[f"again-{marker}"] = await self.done(
                client, "again", {**runs, "marker": f"again-{marker}"}
            )
            text, name = f"file {marker} " * 50, f"{marker}.txt"
            if await self.done(client, "keep", {"username": "x", "text": text, "name": name}):
                self.files[user, name] = hashlib.sha256(text.encode()).hexdigest()

    async def long(self, client: StdioClient, user: str, marker: str) -> None:
        """Make a call that lasts until its node breaks."""
        arguments = {"runs": str(self.world.folder / "runs"), "marker": marker, "seconds": 300}
        self.once[marker] = await self.done(client, "once", arguments)

    async def done(self, client: StdioClient, tool: str, arguments: dict[str, object]) -> bool:
        output = await client.call_tool(tool, arguments, raise_on_error=False)
        code = "ok"
        if output.is_error:
            code = next(part for part in str(output.content).replace('"', " ").split() if part[:2] == "E_")
        self.ended[code.strip("\\',.:")] += 1
        return not output.is_error


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@asynccontextmanager
async def _host(
    world: World, prefix: list[str], user: str, tools: Path = TOOLS
) -> AsyncIterator[StdioClient]:
    command = [*prefix, sys.executable, "-m", "runner", "serve", "--transport", "stdio", "--user", user]
    transport = StdioTransport(
        command=command[0],
        args=[*command[1:], str(tools)],
        env=world.environment(f"host-{user}"),
        log_file=world.folder / f"host-{user}.log",
    )
    async with Client(transport, timeout=120) as client:
        yield client


async def test_fleet_survives_network_faults(
    tmp_path: Path, fleet_bucket: BucketAddress, net: Network
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o777)
    endpoint = str(fleet_bucket.endpoint).removeprefix("http://").split(":")
    relay = Relay(net.address, (endpoint[0], int(endpoint[1])))
    server = RedisServer(tmp_path, address=net.address)
    server.start()
    part = replace(fleet_bucket, prefix=f"{fleet_bucket.prefix}net{net.token}/")
    more = {
        "allow_write": str(tmp_path / "runs"),
        "redis_insecure": True,
    }
    world = World(tmp_path, part, server, more, endpoint=f"http://{net.address}:{relay.port}")
    places = [net.machine() for _ in range(5)]
    try:
        nodes = [
            await asyncio.to_thread(world.node, f"node{number}", prefix=[*place, *clock])
            for number, (place, clock) in enumerate(zip(places[:3], ([], [], wrong_by("-2h")), strict=True))
        ]
        # With `faketime` no process can sleep, so a node with a wrong clock cannot begin a second life.
        for user, node in zip(USERS, nodes, strict=False):
            server.client().set(f"toolcell:user:{release_of([str(TOOLS)])}:{user}", node.name)
        async with _host(world, places[3], "ann") as ann, _host(world, places[4], "bob") as bob:
            load = await _under_load(world, net, relay, nodes, places, (ann, bob))
        left = [node.children() for node in world.nodes]
        await _stopped(world)
        for number, place in enumerate(places[:3]):
            await _sent_on(world, f"node{number}", place)
    finally:
        await _stopped(world)
        server.kill()
        relay.close()
    assert load.orphans
    await until(lambda: not any(alive(pids) for pids in (load.orphans, *left)))
    await _is_as_promised(world, load)


async def _stopped(world: World) -> None:
    for node in world.nodes:
        node.process.terminate()
    for node in world.nodes:
        await asyncio.to_thread(node.process.wait, 60)


async def _sent_on(world: World, name: str, place: list[str]) -> None:
    """Make another node on the same state folder send the spooled messages of a node that ended."""
    spool = Spool(world.folder / name / "state" / "spool")
    waiting = len(spool.all())
    print(name, "still holds", waiting)
    if waiting:
        await asyncio.to_thread(world.node, name, prefix=place)
        await until(lambda: not spool.all(), within_s=180)


async def _under_load(
    world: World,
    net: Network,
    relay: Relay,
    nodes: list[NodeProcess],
    places: list[list[str]],
    clients: tuple[StdioClient, StdioClient],
) -> Load:
    """Break one thing after the other while calls come; return how they ended."""
    load = Load(world)
    calling = [
        asyncio.create_task(load.of_user(client, user, number))
        for client, user in zip(clients, USERS, strict=True)
        for number in range(2)
    ]

    async def goes_on() -> None:
        """Wait until calls of both users are answered again."""
        before = load.ended["ok"]
        await until(lambda: load.ended["ok"] >= before + 12, within_s=180)

    async def victim(number: int, marker: str) -> tuple[int, asyncio.Task[None]]:
        """Begin a long call of a user; return which node has it."""
        calling = asyncio.create_task(load.long(clients[number], USERS[number], marker))
        await until(lambda: world.runs(marker))
        name = text_of(world.redis.client().get(f"toolcell:user:{release}:{USERS[number]}"))
        return next(at for at, node in enumerate(world.nodes) if node.name == name), calling

    (key,) = world.redis.client().keys("toolcell:nodes:*")
    release = text_of(key).rpartition(":")[2]
    await goes_on()
    at, calling_long = await victim(0, "long-killed")
    # Listed now: after its death they have another parent.
    load.orphans = nodes[at].children()
    nodes[at].kill()
    await asyncio.gather(goes_on(), calling_long)
    at, calling_long = await victim(1, "long-cut")
    cut = nodes[at]
    net.cut(places[at])
    await until(lambda: "fleet node fenced" in cut.output)
    await asyncio.gather(goes_on(), calling_long)
    net.reconnect(places[at])
    await until(lambda: len(cut.names) >= 2)
    world.redis.kill()
    world.redis.start()
    await until(world.redis.answers)
    await goes_on()
    redis, refused = world.redis.client(), load.ended["E_BUSY"]
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] - 1)
    # Calls in flight wait for memory, so it takes new ones to be refused.
    more = list[asyncio.Task[bool]]()
    while load.ended["E_BUSY"] == refused:
        more.append(asyncio.create_task(load.done(clients[0], "add", {"a": 1, "b": 2})))
        await asyncio.sleep(0.5)
    redis.config_set("maxmemory", 0)
    await asyncio.gather(*more)
    await goes_on()
    relay.cut()
    await asyncio.sleep(60)
    relay.reopen()
    await goes_on()
    # Another node comes, and the one that has the calls is told to go.
    await asyncio.to_thread(world.node, "node3", prefix=places[0])
    name = text_of(world.redis.client().get(f"toolcell:user:{release}:ann"))
    leaving = next(node for node in world.nodes if node.process.poll() is None and node.name == name)
    leaving.process.terminate()
    await until(lambda: leaving.process.poll() is not None)
    await goes_on()
    # As in an upgrade: node and host of the next release beside the old ones, which go on.
    newer = world.folder / "next" / TOOLS.name
    newer.parent.mkdir(exist_ok=True)
    newer.write_text(f"{TOOLS.read_text()}\n# newer\n")
    await asyncio.to_thread(world.node, "next", prefix=places[1], tools=newer)
    async with _host(world, places[3], "eve", newer) as eve:
        output = await eve.call_tool("add", {"a": 1, "b": 2})
        await goes_on()
    served = text_of(world.redis.client().get(f"toolcell:user:{release_of([str(newer)])}:eve"))
    assert output.data == 3
    assert served == world.nodes[-1].name
    load.running = False
    await asyncio.gather(*calling)
    return load


async def _is_as_promised(world: World, load: Load) -> None:
    print("ended", dict(load.ended), "files", len(load.files))
    runs = {marker: world.runs(marker) for marker in (*load.once, *load.again)}
    assert set(load.ended) <= {"ok", "E_CRASHED", "E_BUSY", "E_STORE", "E_CANCELLED"}
    # Something did break.
    assert load.ended["E_CRASHED"] >= 2
    assert {marker: runs[marker] for marker in ("long-killed", "long-cut")} == {
        "long-killed": 1,
        "long-cut": 1,
    }
    assert [marker for marker in load.once if runs[marker] > 1] == []
    assert [marker for marker, is_done in load.once.items() if is_done and runs[marker] != 1] == []
    assert [marker for marker, is_done in load.again.items() if is_done and runs[marker] < 1] == []
    settings = Settings(**world.settings("look"))
    library = open_library(settings)
    for (user, name), digest in load.files.items():
        record = await library.of(user).find(name)
        assert record is not None, (user, name)
        assert record.sha256 == digest
        async with library.of(user).open(record) as content:
            read = b"".join([piece async for piece in content])
        assert hashlib.sha256(read).hexdigest() == digest
