from dataclasses import replace
from math import factorial
from typing import TypedDict

import pytest

from benchmarks.fleet.figures import FIGURES, costs
from benchmarks.fleet.model import PARTS, erlang_c, mean_wait_s, plan, predict, use_of
from benchmarks.fleet.sizes import NODE, SIZES, work
from benchmarks.fleet.workload import GIB, MIB, Fleet


class Change(TypedDict, total=False):
    """What differs from the work that users ask for elsewhere."""

    tool_cpu_s: float
    tool_wait_s: float
    tool_bytes: int
    file_bytes: int
    session_idle_s: float


def test_with_one_server_who_comes_waits_as_often_as_it_is_busy() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert mean_wait_s(0.7, 1.0, 1) == pytest.approx(0.7 / 0.3)


@pytest.mark.parametrize(("servers", "offered"), [(2, 1.0), (10, 8.0), (40, 39.0)])
def test_with_several_servers_the_wait_is_the_sum_that_erlang_wrote(servers: int, offered: float) -> None:
    full = offered**servers / factorial(servers) * servers / (servers - offered)
    free = sum(offered**number / factorial(number) for number in range(servers))

    assert erlang_c(servers, offered) == pytest.approx(full / (full + free))


def test_more_work_than_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="offered < servers, got 2 and 2"):
        erlang_c(2, 2)


def test_every_figure_lies_in_its_range_and_says_where_it_is_from() -> None:
    odd = [name for name, one in FIGURES.items() if not one.low <= one.value <= one.high or not one.source]

    assert odd == []


@pytest.mark.parametrize("users", SIZES)
def test_what_is_planned_is_enough_even_with_one_node_gone(users: int) -> None:
    fleet = plan(work(users), costs(), of=NODE)

    left = predict(work(users), replace(fleet, nodes=fleet.nodes - 1), costs())

    assert max(left.busy.values()) <= 1
    assert max(share for part, share in left.busy.items() if part != "memory") <= costs().full + 0.01


def test_what_is_planned_is_not_more_than_is_needed() -> None:
    fleet = plan(work(100_000), costs(), of=NODE)

    less = predict(work(100_000), replace(fleet, nodes=fleet.nodes - 2), costs())

    assert less.busy["memory"] > 1


def test_a_million_users_need_about_ten_times_what_a_hundred_thousand_do() -> None:
    many, more = (plan(work(users), costs(), of=NODE) for users in (100_000, 1_000_000))

    assert more.fleets * more.nodes == pytest.approx(10 * many.fleets * many.nodes, rel=0.1)


def test_the_rate_follows_users_until_the_narrowest_part_is_full_and_then_stays() -> None:
    fleet = Fleet(hosts=1, nodes=1, cores=2)
    light, heavy, heavier = (predict(work(users), fleet, costs()) for users in (10, 10_000, 20_000))

    assert light.rate == pytest.approx(10 / (30 + light.answer_s), rel=0.001)
    assert heavy.rate == pytest.approx(1 / use_of(work(1), costs()).cores_s, rel=0.001)
    assert heavier.rate == pytest.approx(heavy.rate, rel=0.001)
    assert heavier.answer_s - heavy.answer_s == pytest.approx(10_000 / heavy.rate, rel=0.01)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"session_idle_s": 0.0, "tool_cpu_s": 2.0}, "cores"),
        ({"session_idle_s": 0.0, "tool_wait_s": 100.0, "tool_bytes": 0}, "places"),
        ({"session_idle_s": 0.0, "file_bytes": 1 * GIB}, "network"),
        ({"tool_bytes": 64 * MIB}, "memory"),
    ],
)
def test_what_ends_first_is_what_the_load_takes_most_of(change: Change, part: str) -> None:
    fleet = Fleet(hosts=20, nodes=2)

    assert predict(replace(work(500), **change), fleet, costs()).first == part


def test_every_host_that_is_added_hears_of_every_call_so_that_one_fleet_ends_somewhere() -> None:
    one, many, most = (
        predict(work(90_000), Fleet(hosts=hosts, nodes=200), costs()).busy["redis"] for hosts in (10, 50, 200)
    )

    assert one < many < most


def test_every_part_that_can_be_full_is_predicted() -> None:
    assert {*predict(work(10), NODE, costs()).busy} == {*PARTS}
