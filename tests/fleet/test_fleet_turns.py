"""Turns of waiting calls in a real Redis: a waiter for one node does not block waiters for another."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fleet_world import RedisServer

from runner.fleet.lua import PLACE, RELEASE, TURNS
from runner.fleet.redis_names import RedisKeys

_LEASE_MS = 10_000


@dataclass
class Places:
    """Nodes with one place each, as hosts ask for them."""

    server: RedisServer
    keys: RedisKeys = field(default_factory=lambda: RedisKeys("f"))

    def __post_init__(self) -> None:
        self.redis = self.server.client()

    def node(self, name: str, *users: str) -> None:
        """Add a node, where these users have their workers."""
        self.redis.hset(self.keys.node(name), mapping={"capacity": 1, "draining": 0})
        self.redis.sadd(self.keys.nodes("r"), name)
        for user in users:
            self.redis.set(self.keys.user("r", user), name)

    def ask(self, call: str, user: str) -> str:
        """Request a place; return the node, or an empty text."""
        keys = self.keys
        names = [
            keys.call(call), keys.user("r", user), keys.nodes("r"), *keys.turns(), keys.running("all"),
        ]  # fmt: skip
        said, what, *_ = PLACE.run_now(
            self.redis, names,
            keys.prefix, call, 0, "host", _LEASE_MS, _LEASE_MS, user, "", _LEASE_MS, 64, 0,
        )  # fmt: skip
        return what.decode() if said == b"placed" else ""

    def give_back(self, call: str, node: str) -> None:
        keys, (waiting, *_) = self.keys, self.keys.turns()
        names = [
            keys.call(call), keys.eager, waiting, keys.waits_at, keys.running("all"), keys.load(node),
        ]  # fmt: skip
        RELEASE.run_now(self.redis, names, 1, keys.freed, node, call, call)

    def hold(self) -> None:
        """Let those who wait go on to wait, as their hosts say twice a second."""
        waiting, asked, _ = self.keys.turns()
        for user in self.redis.zrange(waiting, 0, -1):
            assert isinstance(user, bytes)
            self.redis.zadd(asked, {user: 1e15})
        self.redis.set(self.keys.eager, "1")
        for key in (waiting, asked, self.keys.waits_at):
            self.redis.persist(key)

    def turns(self) -> set[str]:
        keys = self.keys
        users, _ = TURNS.run_now(self.redis, [*keys.turns()[:2], keys.eager, keys.waits_at], 2000)
        return {user.decode() for user in users}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    server = RedisServer(tmp_path)
    server.start()
    try:
        yield Places(server)
    finally:
        server.kill()


def _behind(places: Places, user: str, node: str) -> None:
    """Let a user have some calls, so that others of whom that is not so come first."""
    for number in range(3):
        assert places.ask(f"{user}{number}", user) == node
        places.give_back(f"{user}{number}", node)


def test_waiter_for_full_node_does_not_block_other_node(places: Places) -> None:
    places.node("one", "ann")
    places.node("two", "bob")
    assert places.ask("first", "ann") == "one"
    _behind(places, "bob", "two")

    assert places.ask("second", "ann") == ""
    assert places.ask("bobs", "bob") == "two"


def test_waiter_for_full_node_does_not_block_new_users(places: Places) -> None:
    places.node("one", "ann", "bob")
    places.node("two")
    assert places.ask("first", "bob") == "one"
    assert places.ask("anns", "ann") == ""
    places.hold()
    _behind(places, "zoe", "two")

    assert places.ask("news", "eve") == "two"


def test_at_one_node_users_take_turns(places: Places) -> None:
    places.node("one", "ann", "bob", "eve")
    _behind(places, "bob", "one")
    assert places.ask("eves", "eve") == "one"
    assert places.ask("anns", "ann") == ""
    places.hold()
    places.give_back("eves", "one")

    assert places.ask("bobs", "bob") == ""
    assert places.ask("anns", "ann") == "one"


def test_place_is_offered_to_waiters_for_its_node(places: Places) -> None:
    ones = [f"of-one-{number}" for number in range(6)]
    places.node("one", "x", *ones)
    places.node("two", "y", "late")
    assert (places.ask("xs", "x"), places.ask("ys", "y")) == ("one", "two")
    # What redis-py gives to listen with has no types.
    client: Any = places.redis
    channel = client.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(places.keys.freed)
    for user in (*ones, "late"):
        assert places.ask(f"call-{user}", user) == ""
        places.hold()

    turns = places.turns()
    places.hold()
    places.give_back("ys", "two")
    heard = channel.get_message(timeout=60) or channel.get_message(timeout=60)

    assert "late" in turns
    assert len(turns) == 5
    assert json.loads(heard["data"])[0] == ["late"]
