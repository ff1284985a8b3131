"""Placement of users on nodes, and the share of a limit that each node enforces."""

from collections import Counter

import pytest

from runner.fleet.placing import node_of, share_of
from runner.settings.named_limits import LimitSettings

USERS = [f"user{number}" for number in range(3000)]
NODES = {"one": 16, "two": 16, "three": 16}


def test_users_are_spread_evenly_over_equal_nodes() -> None:
    users = Counter(node_of(user, NODES) for user in USERS)

    assert set(users) == set(NODES)
    assert min(users.values()) > 900


def test_node_of_twice_the_capacity_gets_twice_the_users() -> None:
    users = Counter(node_of(user, {"small": 8, "large": 16}) for user in USERS)

    assert 1900 < users["large"] < 2100


def test_only_users_of_a_leaving_node_move() -> None:
    before = {user: node_of(user, NODES) for user in USERS}
    after = {user: node_of(user, {"one": 16, "three": 16}) for user in USERS}

    moved = {user for user in USERS if before[user] != after[user]}
    assert moved == {user for user in USERS if before[user] == "two"}


def test_order_of_nodes_does_not_matter() -> None:
    backwards = dict(reversed(NODES.items()))

    assert [node_of(user, backwards) for user in USERS] == [node_of(user, NODES) for user in USERS]


def test_user_has_no_node_where_there_is_none() -> None:
    assert node_of("ann", {}) is None


@pytest.mark.parametrize(("most", "nodes", "shares"), [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (5, 1, [5])])
def test_shares_of_all_nodes_add_up_to_the_limit(most: int, nodes: int, shares: list[int]) -> None:
    limit = LimitSettings(max_calls=most, calls_per_minute=most)

    parts = [share_of(limit, rank=rank, nodes=nodes) for rank in range(nodes)]

    assert [part.max_calls for part in parts] == shares
    assert [part.calls_per_minute for part in parts] == shares


def test_each_node_has_a_share_of_a_small_limit() -> None:
    limit = LimitSettings(max_calls=2)

    parts = [share_of(limit, rank=rank, nodes=4) for rank in range(4)]

    assert [(part.max_calls, part.calls_per_minute) for part in parts] == [(1, None)] * 4


def test_limit_for_each_user_is_not_divided() -> None:
    limit = LimitSettings(max_calls=2, per="user")

    assert share_of(limit, rank=3, nodes=4) == limit
