"""One user at two hosts: files, sessions and file events of one are used at the other."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from fleet_world import PATIENCE_S, HostSide, World, until, wait_until

from runner.errors import CallError, Code
from runner.files.file_events import STORED
from runner.files.my_files import MyFiles
from runner.fleet.shared_sessions import SharedSessions
from runner.store.protocol import Origin
from runner.users.events import LIST_CHANGED, UPDATED, Subscription
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]

ENDING: dict[str, Any] = {"persist_files_across_sessions": False}


def _files(host: HostSide, user: str = "ann", session: str | None = None) -> MyFiles:
    return host.toolset.files(User(user, session))


async def _put(files: MyFiles, name: str, text: str) -> None:
    await files.put(text.encode(), name=name, origin=Origin.UPLOADED)


async def _content(files: MyFiles, name: str) -> bytes:
    record = await files.find(name)
    assert record is not None
    async with files.open(record) as content:
        return b"".join([piece async for piece in content])


async def _names(host: HostSide, session: str | None = None) -> list[str | None]:
    return [record.name for record in await _files(host, session=session).all()]


async def test_files_and_worker_of_one_host_are_usable_at_another(world: World) -> None:
    world.node("one")
    world.node("two")

    async with world.host("a") as a, world.host("b") as b:
        await _put(_files(a), "uploaded.txt", "from a")
        await a.call("keep", {"username": "x", "text": "made", "name": "made.txt"})
        listed, read = await _names(b), await _content(_files(b), "uploaded.txt")
        used = [
            await b.result("read_file", {"username": "x", "filename": name})
            for name in ("uploaded.txt", "made.txt")
        ]
        # The same worker, and what it was told to remember.
        counted = [await host.result("counted") for host in (a, b)]
        await a.result("remember", {"key": "k", "value": "v"})
        recalled = await b.result("recall", {"key": "k"})
        removed = await _files(b).remove("uploaded.txt")
        left, of_another = await _names(a), await _files(b, "bob").all()

    assert (listed, read) == (["made.txt", "uploaded.txt"], b"from a")
    assert used == ["from a", "made"]
    assert (counted, recalled) == ([1, 2], "v")
    assert (removed, left, of_another) == (True, ["made.txt"], [])


async def test_files_count_for_one_user_quota_at_all_hosts(world: World) -> None:
    world.more["max_user_bytes"] = 1000
    world.node("one")

    async with world.host("a") as a, world.host("b") as b:
        await _put(_files(a), "first.txt", "x" * 600)
        with pytest.raises(CallError) as refused:
            await _put(_files(b), "second.txt", "y" * 600)
        of_a_tool = await b.call("keep", {"username": "x", "text": "z" * 600, "name": "third.txt"})
        await _put(_files(b, "bob"), "of-another.txt", "b" * 600)
        await _files(a).remove("first.txt")
        await _put(_files(b), "second.txt", "y" * 600)
        listed = await _names(a)

    assert refused.value.code is Code.E_QUOTA
    assert "E_QUOTA" in str(of_a_tool.processed.value)
    assert listed == ["second.txt"]


async def test_no_host_ends_a_session_that_is_used_at_another(world: World) -> None:
    async with world.host("a", **ENDING) as a, world.host("b", **ENDING) as b:
        await _put(_files(a), "f.txt", "x")
        async with _files(b).in_use():
            await a.toolset.library.end_idle_sessions(0)
            while_used = await _names(b)
        await a.toolset.library.end_idle_sessions(60)
        soon_after = await _names(b)
        await a.toolset.library.end_idle_sessions(0)
        idle = await _names(b)

    assert (while_used, soon_after, idle) == (["f.txt"], ["f.txt"], [])


async def test_session_is_reused_elsewhere_only_after_it_ended(world: World) -> None:
    async with world.host("a", **ENDING) as a, world.host("b", **ENDING) as b:
        await _put(_files(a), "old.txt", "x")
        assert a.engine.sessions is not None
        (session,) = a.engine.sessions.known()
        right = a.engine.sessions.claim(session)
        second = b.engine.sessions.claim(session) if b.engine.sessions is not None else right
        putting = asyncio.create_task(_put(_files(b), "new.txt", "y"))
        await asyncio.sleep(0.5)
        waited = not putting.done()
        assert right is not None
        right.release()
        await putting

    assert second is None
    assert waited


async def test_files_put_at_host_outlive_it_until_session_is_idle(world: World) -> None:
    async with world.host("b", **ENDING) as b:
        async with world.host("a", **ENDING) as a:
            await _put(_files(a, session="s1"), "f.txt", "x")
            using = world.redis.client().zrange("toolcell:sessions", 0, -1)
        after = await _names(b, session="s1")
        ended = await b.toolset.library.end_idle_sessions(0)
        left = await _names(b, session="s1")

    assert len(using) == 1
    assert (after, ended, left) == (["f.txt"], 1, [])


async def test_session_use_of_silent_host_ends_with_its_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.host("a", **ENDING) as a, world.host("b", **ENDING) as b, _files(a).in_use():
        assert a.engine.sessions is not None
        while_alive = await b.toolset.library.end_idle_sessions(0)
        # A short lease, and nobody renews it.
        monkeypatch.setattr("runner.fleet.shared_sessions.LEASE_S", 0.3)
        await asyncio.to_thread(a.engine.sessions.renew)
        monkeypatch.setattr(SharedSessions, "renew", lambda _sessions: None)
        ended = asyncio.create_task(_end_one(b))
        await asyncio.wait_for(ended, PATIENCE_S)

    assert while_alive == 0


async def _end_one(host: HostSide) -> None:
    """End a session as soon as one may end."""
    while not await host.toolset.library.end_idle_sessions(0):
        await asyncio.sleep(0.1)


async def test_call_on_node_holds_session_whose_end_removes_files(world: World) -> None:
    world.more |= ENDING
    node = world.node("one")

    async with world.host("a") as a, world.host("b") as b:
        made = await a.call("keep", {"username": "x", "text": "made", "name": "made.txt"})
        calling = asyncio.create_task(
            a.call("once", {"runs": str(world.folder / "runs"), "marker": "w", "seconds": 300.0})
        )
        await until(lambda: world.runs("w"))
        while_running = await b.toolset.library.end_idle_sessions(0)
        calling.cancel()
        await asyncio.wait({calling})
        listed = await _names(b)
        ended = await b.toolset.library.end_idle_sessions(0)
        left = await _names(a)

    assert not made.processed.is_error, made.processed.value
    assert (while_running, listed) == (0, ["made.txt"])
    assert (ended, left) == (1, [])
    assert not list(node.folder.glob("state/sessions/*"))


async def test_file_events_reach_listeners_of_the_user_at_every_host(world: World) -> None:
    world.node("one")

    async with world.host("a") as a, world.host("b") as b:
        with (
            b.toolset.events.subscribe(user=User("ann").segment) as anns,
            b.toolset.events.subscribe(user=User("bob").segment) as bobs,
            a.toolset.events.subscribe(user=User("ann").segment) as at_a,
        ):
            await asyncio.to_thread(_channel_has, world, 2)
            await _put(_files(a), "up.txt", "x")
            uploaded = [await _next(anns), await _next(anns)]
            await a.call("keep", {"username": "x", "text": "y", "name": "made.txt"})
            made = await _next(anns)
            await _files(b).remove("up.txt")
            gone = await _next(anns)
            here = [await _next(at_a)]
            # Beside them that of the call itself, which its own host tells.
            while here[-1]["type"] != "artifact_removed":
                here.append(await _next(at_a))
            unheard = await _rest(b, bobs)
            more = await _rest(b, anns)

    assert [event["type"] for event in uploaded] == ["artifact_stored", "files_update"]
    assert (made["type"], made["origin"]) == ("artifact_stored", "generated")
    assert [event["type"] for event in here].count("artifact_stored") == 2
    assert gone["type"] == "artifact_removed"
    assert (unheard, more) == ([], [])


async def test_events_without_the_seal_are_dropped(world: World) -> None:
    async with world.host("a") as a:
        with a.toolset.events.subscribe(user=User("ann").segment) as events:
            await asyncio.to_thread(_channel_has, world, 1)
            forged = '{"source":"x","user":"%s","session":null,"event":{"type":"list_changed"}}'
            world.redis.client().publish("toolcell:events", "0" * 64 + forged % User("ann").segment)
            await _put(_files(a), "real.txt", "x")
            first = await _next(events)

    assert first["type"] == "artifact_stored"


async def test_list_changes_reach_other_hosts_and_gaps_are_reported(world: World) -> None:
    changed = {"type": LIST_CHANGED, "list": "tools"}
    async with world.host("a") as a, world.host("b") as b:
        with b.toolset.events.subscribe(user="ann") as others, a.toolset.events.subscribe(user="ann") as own:
            await asyncio.to_thread(_channel_has, world, 2)
            a.toolset.events.publish(changed, user="ann")
            first, missed_before = await _next(others), others.missed
            world.redis.client().client_kill_filter(_type="pubsub")
            await until(lambda: others.missed > missed_before)
            await asyncio.to_thread(_channel_has, world, 2)
            a.toolset.events.publish(changed, user="ann")
            again, here = await _next(others), [await _next(own), await _next(own)]

    assert (first, again, here) == (changed, changed, [changed, changed])
    assert missed_before == 0


async def test_events_wait_for_redis(world: World) -> None:
    stored = [{"type": STORED, "uri": f"artifact://{number}"} for number in range(500)]
    async with world.host("a") as a, world.host("b") as b:
        with b.toolset.events.subscribe(user="ann", max_events=5000) as events:
            await asyncio.to_thread(_channel_has, world, 2)
            # For longer than a command may take.
            world.redis.client().client_pause(2500)
            for event in stored:
                a.toolset.events.publish(event, user="ann")
            received = [await _next(events)]
            while received[-1] != stored[-1]:
                received.append(await _next(events))
            lost = (a.toolset.events.lost, events.missed)

    # Events that Redis accepted without answering in time arrive twice.
    assert list({event["uri"]: event for event in received}.values()) == stored
    assert lost == (0, 0)


async def test_event_overflow_drops_oldest_and_reports_gap(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    changed = [{"type": UPDATED, "uri": f"x://{number}"} for number in range(1200)]
    async with world.host("a") as a, world.host("b") as b:
        with b.toolset.events.subscribe(user="ann", max_events=5000) as events:
            await asyncio.to_thread(_channel_has, world, 2)
            for event in changed:
                a.toolset.events.publish(event, user="ann")
            received = [await _next(events) for _ in range(1000)]
            missed = events.missed
        metrics = await a.toolset.gauges()

    assert received == changed[200:]
    assert (missed, metrics.events_lost) == (1, 200)
    messages = [entry.message for entry in caplog.records]
    assert messages.count("file events lost") == 1


async def test_event_sent_at_host_end_is_received(world: World) -> None:
    changed = {"type": LIST_CHANGED, "list": "tools"}
    async with world.host("b") as b:
        with b.toolset.events.subscribe(user="ann") as events:
            async with world.host("a") as a:
                await asyncio.to_thread(_channel_has, world, 2)
                a.toolset.events.publish(changed, user="ann")
            received = await _next(events)

    assert received == changed


def _channel_has(world: World, hosts: int) -> None:
    client = world.redis.client()
    wait_until(lambda: client.pubsub_numsub("toolcell:events") == [(b"toolcell:events", hosts)])


async def _rest(host: HostSide, subscription: Subscription) -> list[Mapping[str, Any]]:
    """Return the remaining events of a subscription."""
    last = {"type": "last"}
    host.toolset.events.deliver(last, user=subscription.user)
    rest = [await _next(subscription)]
    while rest[-1] != last:
        rest.append(await _next(subscription))
    return rest[:-1]


async def _next(subscription: Subscription) -> Mapping[str, Any]:
    return await anext(subscription)
