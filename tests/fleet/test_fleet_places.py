"""Placement of new users on nodes, and calls woken when a place becomes free."""

import asyncio
import signal
from collections import Counter

import pytest
from fleet_world import World, until

from runner.fleet import placing

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]


async def test_new_users_are_spread_over_equal_nodes(world: World) -> None:
    world.node("one")
    world.node("two")
    world.node("three")
    redis = world.redis.client()

    async with world.host() as host:
        for number in range(9):
            # One after the other: all nodes are as free as can be whenever somebody comes.
            await host.result("add", {"a": 1, "b": 1}, user=f"user{number}")
        nodes = Counter(redis.get(key) for key in redis.keys("toolcell:user:*"))

    assert sorted(nodes.values()) == [3, 3, 3]


async def test_freed_place_is_requested_by_few_waiters(world: World) -> None:
    """Were all 60 users woken for the one place there is, Redis were asked 130 times for each call."""
    world.node("one", max_calls=1)
    redis = world.redis.client()
    arguments = {"runs": str(world.folder / "runs"), "marker": "n", "seconds": 0.2}

    async with world.host(max_calls=100) as host:
        await host.result("add", {"a": 1, "b": 1})
        calls = [asyncio.create_task(host.call("once", arguments, user=f"user{n}")) for n in range(60)]
        await until(lambda: redis.zcard("toolcell:waiting") >= 50)
        redis.config_resetstat()
        began = world.runs("n")
        await until(lambda: world.runs("n") >= began + 15)
        asked = redis.info("commandstats")["cmdstat_evalsha"]["calls"] / (world.runs("n") - began)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    # Placed, begun, given back; four that are woken; those that poll while a call takes its time.
    assert asked < 50


async def test_every_waiter_gets_a_place(world: World) -> None:
    world.node("one", max_calls=2)
    arguments = {"runs": str(world.folder / "runs"), "marker": "n", "seconds": 0.05}

    async with world.host("host1") as first, world.host("host2") as second:
        ended = await asyncio.gather(
            *(
                host.call("once", arguments, user=f"user{n % 7}")
                for n in range(20)
                for host in (first, second)
            )
        )

    assert [one.processed.value["results"] for one in ended] == ["done"] * 40
    assert world.runs("n") == 40


async def test_call_cancelled_while_getting_place_returns_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it were taken for as long as a place of a host that is gone."""
    monkeypatch.setattr(placing, "LEASE_S", 3600.0)
    world.node("one", max_calls=1)
    redis, server = world.redis.client(), world.redis.process
    assert server is not None
    arguments = {"runs": str(world.folder / "runs"), "marker": "n", "seconds": 0.01}

    async with world.host() as host:
        await host.result("add", {"a": 1, "b": 1})
        await until(lambda: not any(redis.zcard(key) for key in redis.keys("toolcell:load:*")))
        given = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        # A Redis that has much to do answers when nobody wants that any more.
        server.send_signal(signal.SIGSTOP)
        calling = asyncio.create_task(host.call("once", arguments))
        await until(lambda: host.engine.waiting() > 0)
        # Until the question is in the socket.
        await asyncio.sleep(0.5)
        calling.cancel()
        await asyncio.wait({calling})
        server.send_signal(signal.SIGCONT)
        await until(lambda: redis.info("commandstats")["cmdstat_evalsha"]["calls"] >= given + 2)
        await until(lambda: not any(redis.zcard(key) for key in redis.keys("toolcell:load:*")))
        after = await host.result("add", {"a": 1, "b": 1})

    assert (after, world.runs("n")) == (2, 0)
