"""Nodes of users: who stays where, what a full or stopping node does, and what runs once."""

import asyncio
import signal
from typing import Any, cast

import pytest
from fleet_world import World, code_of, text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]


def _once(world: World, marker: str, seconds: float) -> dict[str, Any]:
    return {"runs": str(world.folder / "runs"), "marker": marker, "seconds": seconds}


async def test_users_stay_on_their_node_when_another_joins(world: World) -> None:
    first = world.node("one")
    users = [f"user{number}" for number in range(8)]

    async with world.host("a") as a, world.host("b") as b:
        before = [await a.result("counted", user=user) for user in users]
        await asyncio.to_thread(world.node, "two")
        await until(lambda: len(world.redis.client().keys("toolcell:node:*")) == 2)
        after = [await b.result("counted", user=user) for user in users]
        redis = world.redis.client()
        nodes = {text_of(redis.get(key)) for key in redis.keys("toolcell:user:*")}

    assert (before, after) == ([1] * 8, [2] * 8)
    assert nodes == {first.name}


async def test_every_call_waiting_at_a_node_gets_its_turn(world: World) -> None:
    world.node("one", max_calls=2)

    async with world.host("host1", max_calls=64) as first, world.host("host2", max_calls=64) as second:
        ended = await asyncio.gather(
            *(
                host.call("once", _once(world, "n", 0.05), user=f"user{n % 7}")
                for n in range(20)
                for host in (first, second)
            )
        )

    assert [one.processed.value["results"] for one in ended] == ["done"] * 40
    assert world.runs("n") == 40


async def test_calls_waiting_at_a_stopping_node_run_elsewhere(world: World) -> None:
    first = world.node("one", max_calls=1, drain_s=240)

    async with world.host() as host:
        running = asyncio.create_task(host.call("once", _once(world, "long", 300.0)))
        await until(lambda: world.runs("long"))
        waiting = [asyncio.create_task(host.call("once", _once(world, f"w{n}", 0.1))) for n in range(3)]
        # It reports three calls that wait there.
        await until(lambda: host.engine.waiting() == 3)
        await asyncio.to_thread(world.node, "two")
        first.signal(signal.SIGTERM)
        ended = await asyncio.gather(*waiting)
        is_running = not running.done()
        running.cancel()

    assert is_running
    assert [one.processed.value["results"] for one in ended] == ["done"] * 3
    assert [world.runs(marker) for marker in ("long", "w0", "w1", "w2")] == [1] * 4


async def test_call_cancelled_before_it_begins_never_runs(world: World) -> None:
    world.node("one", max_calls=1)

    async with world.host() as host:
        first = asyncio.create_task(host.call("once", _once(world, "first", 300.0)))
        await until(lambda: world.runs("first"))
        calling = asyncio.create_task(host.call("once", _once(world, "n", 0.01)))
        await until(lambda: host.engine.waiting() == 1)
        calling.cancel()
        await asyncio.wait({calling})
        world.end_runs("first")
        ended = await first
        after = await host.result("add", {"a": 1, "b": 1})

    assert code_of(ended) is None
    assert (after, world.runs("n")) == (2, 0)


async def test_call_runs_once_though_redis_loses_its_last_moments(world: World) -> None:
    node = world.node("one")
    redis = world.redis.client()

    async with world.host() as host:
        await host.result("add", {"a": 1, "b": 1})
        stream = f"toolcell:stream:{node.name}"
        await until(lambda: not redis.xlen(stream))
        node.signal(signal.SIGSTOP)
        calling = asyncio.create_task(host.call("once", _once(world, "r", 0.01)))
        await until(lambda: redis.xlen(stream))
        ((_, record),) = cast(Any, redis.xrange(stream))
        names = redis.keys("toolcell:begin:*")
        saved = {name: value for name in names if (value := redis.dump(name)) is not None}
        node.signal(signal.SIGCONT)
        ended = await calling
        await until(lambda: not redis.xlen(stream))
        # As after a restart of a Redis that was killed before it wrote what the node did.
        for name, value in saved.items():
            redis.restore(name, 0, value, replace=True)
        redis.xadd(stream, record)
        await until(lambda: not redis.xlen(stream))
        after = await host.result("add", {"a": 1, "b": 1})

    assert ended.processed.value["results"] == "done"
    assert len(saved) == 1
    assert (after, world.runs("r")) == (2, 1)


async def test_call_whose_end_redis_lost_gets_an_error(world: World) -> None:
    world.node("one")
    redis = world.redis.client()

    async with world.host() as host:
        calling = asyncio.create_task(host.call("once", _once(world, "e", 300.0)))
        await until(lambda: host.started)
        # The host reads nothing, until the message is lost.
        host.engine.lasting[0].cancel()
        world.end_runs("e")
        await until(lambda: redis.xlen(f"toolcell:stream:{host.engine.host}"))
        redis.delete(f"toolcell:stream:{host.engine.host}")
        ended = await calling

    assert code_of(ended) == "E_CRASHED"
    assert world.runs("e") == 1
