"""Limits of one machine that hold for a fleet: calls, rates, sessions, versions and authentication."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fleet_world import TOOLS, World, alive, code_of, until
from support import Listening

from runner.fleet.messages import NodeMessage, release_of
from runner.fleet.placing import node_of

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]


def _waiting(world: World, marker: str, seconds: float) -> dict[str, Any]:
    return {"runs": str(world.folder / "runs"), "marker": marker, "seconds": seconds}


async def test_a_limit_of_calls_at_once_holds_over_hosts_and_nodes(world: World) -> None:
    world.more |= {"max_calls_per_user": 2}
    world.node("one")
    world.node("two")

    async with world.host("host1") as first, world.host("host2") as second:
        calls = [
            asyncio.create_task(host.call("once", _waiting(world, "n", 300.0)))
            for host in (first, second)
            for _ in range(2)
        ]
        await until(lambda: world.runs("n") == 2)
        # Nobody of another user has to wait for them.
        other = await second.result("add", {"a": 1, "b": 2}, user="bob")
        while_two_ran = world.runs("n")
        world.end_runs("n")
        ended = await asyncio.gather(*calls)

    assert other == 3
    assert while_two_ran == 2
    assert [one.processed.value["results"] for one in ended] == ["done"] * 4
    assert world.runs("n") == 4


async def test_a_limit_of_calls_at_once_holds_after_a_host_has_died(world: World) -> None:
    world.more |= {"max_calls_per_user": 1}
    world.node("one")

    async with world.host("host1") as dying, world.host("host2") as host:
        orphan = asyncio.create_task(dying.call("once", _waiting(world, "h", 300.0)))
        await until(lambda: world.runs("h"))
        running = {int((world.folder / "runs" / "h").read_text())}
        was_alive = alive(running)
        calling = asyncio.create_task(host.call("once", _waiting(world, "n", 0.1)))
        # As if its process were gone: nothing renews what it holds.
        for task in dying.engine.lasting:
            task.cancel()
        await until(lambda: world.runs("n"))
        beside = alive(running)
        ended = await calling
        orphan.cancel()

    assert was_alive == running
    assert not beside
    assert ended.processed.value["results"] == "done"


async def test_running_call_counts_for_limits_after_redis_data_loss(world: World) -> None:
    world.more |= {"max_calls_per_user": 1}
    world.node("one")

    async with world.host("host1") as busy, world.host("host2") as host:
        long = asyncio.create_task(busy.call("once", _waiting(world, "l", 300.0)))
        await until(lambda: busy.started)
        world.redis.client().flushall()
        calling = asyncio.create_task(host.call("once", _waiting(world, "n", 0.1)))
        # Its node reports that it waits there.
        await until(lambda: host.placed and host.engine.waiting())
        beside = (world.runs("n"), long.done())
        long.cancel()
        ended = await calling

    assert beside == (0, False)
    assert ended.processed.value["results"] == "done"


async def test_rate_of_all_users_is_divided_between_nodes(world: World) -> None:
    config = world.folder / "limits.toml"
    config.write_text('[call_limits.adding]\ntools = ["add"]\ncalls_per_minute = 4\n')
    nodes = [world.node(name, config=config) for name in ("one", "two")]
    redis = world.redis.client()
    key = f"toolcell:node:{nodes[0].name}"
    # The first node reads in its next beats that there is a second one.
    statuses: dict[Any, bool] = {}
    await until(lambda: statuses.setdefault(redis.get(key), True) and len(statuses) > 2)
    names = {node.name: 16 for node in nodes}
    users = [f"user{number}" for number in range(40)]

    async with world.host("host1") as first, world.host("host2") as second:
        completed = {
            node.name: [
                await host.call("add", {"a": 1, "b": 1}, user=user)
                for host, user in zip(
                    (first, second, first),
                    [user for user in users if node_of(user, names) == node.name],
                    strict=False,
                )
            ]
            for node in nodes
        }

    assert [[code_of(one) for one in ended] for ended in completed.values()] == [[None, None, "E_BUSY"]] * 2
    details = completed[nodes[0].name][-1].processed.value["meta_data"]["details"]
    assert 0 < details["retry_after_seconds"] <= 60
    assert details["limit"] == "call_limits.adding.calls_per_minute"


async def test_session_state_follows_its_user(world: World) -> None:
    first = world.node("one")

    async with world.host() as host:
        await host.call("remember", {"key": "k", "value": "v"})
        here = await host.result("recall", {"key": "k"})
        await asyncio.to_thread(world.node, "two")
        first.process.terminate()
        await asyncio.to_thread(first.process.wait, 60)
        there = await host.result("recall", {"key": "k"})
        of_another = await host.result("recall", {"key": "k"}, user="bob")

    assert (here, there, of_another) == ("v", "v", None)


async def test_two_releases_run_side_by_side(world: World, tmp_path: Path) -> None:
    newer = tmp_path / "fleet_tools.py"
    newer.write_text(TOOLS.read_text().replace("return a + b", "return a + b + 1000"))
    world.node("old")
    world.node("new", tools=newer)

    async with world.host("host1") as old, world.host("host2", tools=newer) as new:
        sums = [await host.result("add", {"a": 1, "b": 2}) for host in (old, new) * 3]

    assert sums == [3, 1003] * 3


async def test_host_without_nodes_of_its_release_is_busy(world: World, tmp_path: Path) -> None:
    newer = tmp_path / "fleet_tools.py"
    newer.write_text(f"{TOOLS.read_text()}\n# newer\n")
    world.node("one")

    async with world.host("host1", tools=newer) as host:
        completed = await host.call("add", {"a": 1, "b": 2})

    assert code_of(completed) == "E_BUSY"
    assert (
        f"No worker node serves this version ({release_of([str(newer)])})"
        in completed.processed.value["results"]["error"]
    )


async def test_a_record_without_the_seal_does_nothing(world: World) -> None:
    node = world.node("one")

    async with world.host() as host:
        calling = asyncio.create_task(host.call("once", _waiting(world, "s", 300.0)))
        await until(lambda: world.runs("s"))
        ((call, name),) = host.placed.items()
        forged = NodeMessage(call=call, kind="end", body={"value": {"results": "forged"}})
        stranger = "0" * 64 + json.dumps(forged.model_dump())
        redis = world.redis.client()
        redis.xadd(f"toolcell:stream:{host.engine.host}", {"sealed": stranger})
        redis.xadd(
            f"toolcell:stream:{name}", {"sealed": "0" * 64 + '{"kind":"cancel","call":"' + call + '"}'}
        )
        await until(lambda: "without the seal" in node.output)
        world.end_runs("s")
        ended = await calling

    assert ended.processed.value["results"] == "done"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"value": {"results": 1}, "files": [{"id": "art_000000000000"}]}, "E_STORE"),
        ({"value": {"results": 1}, "more": 1}, "E_INVALID_RESULT"),
        ({"failure": {"code": "E_NONE", "message": "m"}}, "E_INVALID_RESULT"),
        ({}, "E_INVALID_RESULT"),
        ({"interim": {"foo": 1}}, "E_INVALID_RESULT"),
        ({"value": {"results": 1}, "wire": {"structuredContent": [1, 2]}}, "E_INVALID_RESULT"),
        ({"value": {"results": 1}, "wire": {"resultType": "input_required"}}, "E_INVALID_RESULT"),
        ({"value": {"results": 1}, "errors": [["n", "r"]]}, "E_INVALID_RESULT"),
        # Controls: the content of a message is refused, not its sender.
        ({"value": {"results": 1}, "wire": {"structuredContent": {"result": 1}}}, None),
        ({"interim": {"resultType": "input_required", "inputRequests": {}, "foo": 1}}, None),
    ],
)
async def test_node_is_trusted_no_more_than_a_worker(
    world: World, body: dict[str, Any], code: str | None
) -> None:
    world.node("one")

    async with world.host() as host:
        calling = asyncio.create_task(host.call("once", _waiting(world, "b", 60.0)))
        await until(lambda: world.runs("b"))
        ((call, _),) = host.placed.items()
        # As a compromised node would send it: with the seal of the fleet.
        sealed = host.engine.connection.key.seal(
            NodeMessage(call=call, kind="end", body=body).model_dump(), to=host.engine.host
        )
        world.redis.client().xadd(f"toolcell:stream:{host.engine.host}", {"sealed": sealed})
        ended = await calling

    assert code_of(ended) == code
    if code is None:
        expected = {k: v for k, v in body.get("interim", {}).items() if k != "foo"}
        assert (ended.interim or {}) == expected


async def test_a_node_cannot_hand_over_a_file_of_another_user(world: World) -> None:
    world.node("one")

    async with world.host() as host:
        theirs = await host.call("keep", {"username": "x", "text": "secret of bob"}, user="bob")
        (file,) = theirs.processed.files
        calling = asyncio.create_task(host.call("once", _waiting(world, "o", 60.0), client=Listening()))
        await until(lambda: world.runs("o"))
        ((call, _),) = host.placed.items()
        body = {"value": {"results": 1}, "files": [{"id": file.id}]}
        sealed = host.engine.connection.key.seal(
            NodeMessage(call=call, kind="end", body=body).model_dump(), to=host.engine.host
        )
        world.redis.client().xadd(f"toolcell:stream:{host.engine.host}", {"sealed": sealed})
        ended = await calling

    assert code_of(ended) == "E_STORE"
    assert "secret of bob" not in str(ended.processed.value)
