"""Faults of machines, networks, Redis and S3: no call is lost silently, none runs twice.

A call is counted by what its own code writes down.
"""

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from fleet_world import HostSide, World, alive, code_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]

# Redelivery after a dead node, and some for a busy machine.


def _slow(world: World, marker: str, seconds: float) -> dict[str, Any]:
    return {"runs": str(world.folder / "runs"), "marker": marker, "seconds": seconds}


async def _running_call(host: HostSide, world: World, tool: str, marker: str, seconds: float = 300.0) -> Any:
    """Begin a call, and return it once its code runs."""
    calling = asyncio.create_task(host.call(tool, _slow(world, marker, seconds)))
    await until(lambda: world.runs(marker))
    return calling


def _details(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = value["meta_data"]["details"]
    return found


async def test_a_call_that_had_begun_on_a_killed_node_is_not_run_again(world: World) -> None:
    world.node("one")
    world.node("two")

    async with world.host() as host:
        calling = await _running_call(host, world, "once", "k")
        victim = _node_of(world, host)
        running = victim.children()
        victim.kill()
        ended = await calling
        after = await host.result("add", {"a": 1, "b": 2})

    assert code_of(ended) == "E_CRASHED"
    assert _details(ended.processed.value)["begun"] is True
    assert world.runs("k") == 1
    assert after == 3
    await until(lambda: not alive(running))


async def test_an_idempotent_call_on_a_killed_node_is_run_again(world: World) -> None:
    world.node("one")
    world.node("two")

    async with world.host() as host:
        calling = await _running_call(host, world, "again", "i")
        _node_of(world, host).kill()
        await until(lambda: world.runs("i") == 2)
        world.end_runs("i")
        ended = await calling

    assert ended.processed.value["results"] == "done"


async def test_a_call_that_had_not_begun_goes_to_another_node(world: World) -> None:
    first = world.node("one")

    async with world.host() as host:
        await host.result("add", {"a": 1, "b": 2})
        await asyncio.to_thread(world.node, "two")
        # It takes no call any more, and hosts do not know that yet.
        first.signal(signal.SIGSTOP)
        ended = await host.call("once", _slow(world, "p", 0.1))
        first.signal(signal.SIGCONT)
        await until(lambda: len(first.names) >= 2)

    assert ended.processed.value["results"] == "done"
    assert world.runs("p") == 1


async def test_node_losing_redis_ends_calls_and_recovers(world: World) -> None:
    node = world.node("one")

    async with world.host() as host:
        calling = await _running_call(host, world, "once", "f")
        running = node.children()
        world.redis.signal(signal.SIGSTOP)
        await until(lambda: "fleet node fenced" in node.output)
        # All of its sandbox, while Redis is still silent.
        await until(lambda: not alive(running))
        world.redis.signal(signal.SIGCONT)
        ended = await calling
        await until(lambda: len(node.names) >= 2)
        after = await host.result("add", {"a": 1, "b": 2})

    assert code_of(ended) == "E_CRASHED"
    assert world.runs("f") == 1
    assert after == 3


async def test_a_short_outage_of_redis_ends_no_call(world: World) -> None:
    world.node("one")

    async with world.host() as host:
        calling = await _running_call(host, world, "once", "s")
        world.redis.kill()
        await asyncio.sleep(0.5)
        world.redis.start()
        world.end_runs("s")
        ended = await calling
        after = await host.result("add", {"a": 1, "b": 2})

    assert ended.processed.value["results"] == "done"
    assert world.runs("s") == 1
    assert after == 3


async def test_calls_wait_while_redis_is_away_or_get_busy(world: World) -> None:
    world.node("one")

    async with world.host() as host:
        await host.result("add", {"a": 1, "b": 2})
        world.redis.kill()
        completed = await host.call("once", _slow(world, "a", 0.1))
        faults = await host.toolset.faults()
        world.redis.start()
        await until(lambda: world.redis.answers())

    assert code_of(completed) == "E_BUSY"
    assert _details(completed.processed.value)["retry_after_seconds"] > 0
    assert world.runs("a") == 0
    assert faults == {"fleet": "the Redis of the fleet does not answer"}


async def test_a_redis_without_memory_takes_no_calls_and_loses_none(world: World) -> None:
    node = world.node("one")

    async with world.host() as host:
        calling = await _running_call(host, world, "once", "m")
        redis = world.redis.client()
        redis.config_set("maxmemory", redis.info("memory")["used_memory"] - 1)
        refused = await host.call("add", {"a": 1, "b": 2})
        world.end_runs("m")
        await until(lambda: "fleet message not sent" in node.output)
        redis.config_set("maxmemory", 0)
        ended = await calling
        after = await host.result("add", {"a": 1, "b": 2})

    assert code_of(refused) == "E_BUSY"
    assert "memory" in str(refused.processed.value)
    assert ended.processed.value["results"] == "done"
    assert world.runs("m") == 1
    assert after == 3


async def test_a_redis_that_has_lost_everything_loses_no_call_silently(world: World) -> None:
    world.node("one")

    async with world.host() as host:
        calling = await _running_call(host, world, "once", "l", 12.0)
        await until(lambda: host.started)
        world.redis.client().flushall()
        ended = await calling
        after = await host.result("add", {"a": 1, "b": 2})

    assert ended.processed.value["results"] == "done"
    assert world.runs("l") == 1
    assert after == 3


async def test_stopped_node_finishes_its_calls_and_accepts_none(world: World) -> None:
    first = world.node("one")

    async with world.host() as host:
        calling = await _running_call(host, world, "once", "d")
        await asyncio.to_thread(world.node, "two")
        first.signal(signal.SIGTERM)
        await until(lambda: "being stopped" in first.output)
        others = [await host.result("add", {"a": one, "b": 1}) for one in range(5)]
        world.end_runs("d")
        ended = await calling
        await until(lambda: first.process.poll() is not None)

    assert ended.processed.value["results"] == "done"
    assert others == [1, 2, 3, 4, 5]
    assert first.process.returncode == 0
    assert world.runs("d") == 1


async def test_calls_of_a_host_that_dies_end_on_their_node(world: World) -> None:
    node = world.node("one")
    before = node.children()

    async with world.host() as host:
        calling = await _running_call(host, world, "once", "h")
        # As if its process were gone: nothing renews what it holds.
        for task in host.engine.lasting:
            task.cancel()
        await until(lambda: "fleet call abandoned" in node.output)
        await until(lambda: node.children() <= before)
        calling.cancel()

    assert before
    assert world.runs("h") == 1


def _node_of(world: World, host: HostSide) -> Any:
    """Return the node on which the only call of a host runs."""
    (call,) = host.placed.values()
    return next(node for node in world.nodes if node.name == call)
