"""No tool reaches the Redis of its fleet: in no tier, by no name, whatever the operator allows.

These tests run as root: the tiers need it.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_world import TOOLS, RedisServer
from support import Listening, request, settings_in

from runner.call import execute
from runner.errors import UsageError
from runner.fleet.serve_node import check_of_fleet
from runner.settings.sources import load
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.needs_root]

TIERS = ("process", "user", "namespace")
# By every way that leads to this machine.
WAYS = ("127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "localhost", "::ffff:127.0.0.1")
PONG = "+PONG\r\n"
# Every port of this machine; the one of Redis by its number is refused at the start.
OPEN = ("localhost", "127.0.0.0/8", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path, ("--unixsocket", str(tmp_path / "redis.sock"), "--unixsocketperm", "777"))
    made.options = (*made.options, "--bind", "0.0.0.0", "::")
    tmp_path.chmod(0o755)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def other() -> Iterator[int]:
    """Another server of this machine, which tools may reach: the control."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = listener.accept()
                    with line:
                        line.sendall(PONG.encode())

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


async def _knock(folder: Path, places: list[tuple[str, int]], **more: Any) -> list[str]:
    settings = settings_in(folder, allow_net=OPEN, **more)
    answers = []
    async with Toolset.open(settings, [str(TOOLS)]) as toolset:
        for host, port in places:
            call = request("ann", "knock", {"host": host, "port": port}, Listening())
            answers.append(str((await execute(toolset, call)).processed.value["results"]))
    return answers


@pytest.mark.parametrize("tier", TIERS)
async def test_no_tool_reaches_redis(tier: str, server: RedisServer, other: int, tmp_path: Path) -> None:
    places = [*((way, server.port) for way in WAYS), (str(tmp_path / "redis.sock"), 0)]

    *answers, control = await _knock(
        tmp_path, [*places, ("127.0.0.1", other)], isolation=tier, redis_url=server.url
    )

    assert control == PONG
    assert [one for one in answers if PONG in one] == []
    assert server.answers()


async def test_without_the_closed_port_the_same_tool_reaches_it(server: RedisServer, tmp_path: Path) -> None:
    answers = await _knock(tmp_path, [(way, server.port) for way in WAYS[:1]], isolation="process")

    assert answers == [PONG]


@pytest.mark.parametrize("opened", ["127.0.0.1:7001", ":7001", "redis.example.com:7001"])
def test_an_operator_cannot_open_its_port_by_name(opened: str) -> None:
    flags = {"redis_url": "redis://127.0.0.1:7001/0", "allow_net": opened}

    with pytest.raises(UsageError, match="port 7001 is that of the fleet's Redis"):
        load(flags)

    assert load({**flags, "allow_net": "127.0.0.1:7002"}).allow_net == ("127.0.0.1:7002",)


def test_fleet_with_isolation_guard_is_refused() -> None:
    flags = {"redis_url": "redis://127.0.0.1/0", "store": "s3://bucket"}

    with pytest.raises(UsageError, match="isolation guard stops no tool"):
        check_of_fleet(load({**flags, "isolation": "guard"}))
