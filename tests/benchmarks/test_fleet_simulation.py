import random
from dataclasses import replace
from typing import TypedDict, Unpack

import pytest

from benchmarks.fleet.figures import Costs, costs
from benchmarks.fleet.model import mean_wait_s, plan, predict
from benchmarks.fleet.simulation import Placing, Scenario, Station, simulate
from benchmarks.fleet.sizes import NODE, work
from benchmarks.fleet.workload import Fleet

pytestmark = pytest.mark.release

TWO = Fleet(hosts=2, nodes=2)
THREE = Fleet(hosts=2, nodes=3)


class Change(TypedDict, total=False):
    """What differs from the work that users ask for elsewhere."""

    think_s: float
    calls_per_session: float
    tool_cpu_s: float
    tool_wait_s: float
    files_in: float
    files_out: float


class More(TypedDict, total=False):
    """What a scenario may say beyond its work, its fleet, its costs and its time."""

    warm_up_s: float
    seed: int
    placing: Placing
    settled: bool
    dies_at_s: float | None


def scenario(
    users: int = 1000,
    *,
    fleet: Fleet = TWO,
    seconds: float = 60.0,
    costs: Costs = costs(),  # noqa: B008
    change: Change | None = None,
    **more: Unpack[More],
) -> Scenario:
    load = replace(work(users), **(change or Change()))
    return Scenario(work=load, fleet=fleet, costs=costs, seconds=seconds, **more)


def waits(servers: int, rate: float, service_s: float, *, customers: int, seed: int) -> float:
    """Let customers come at odd times to a station, each with an odd service; return the mean wait."""
    drawn, station, now, waited = random.Random(seed), Station(servers), 0.0, 0.0
    for _ in range(customers):
        now += drawn.expovariate(rate)
        service = drawn.expovariate(1 / service_s)
        waited += station.ends(now, service) - service - now
    return waited / customers


@pytest.mark.parametrize(("servers", "rate"), [(1, 0.7), (4, 2.8), (7, 4.9)])
def test_the_wait_at_a_station_is_what_the_formula_of_erlang_says(servers: int, rate: float) -> None:
    seen = waits(servers, rate, 1.0, customers=400_000, seed=3)

    assert seen == pytest.approx(mean_wait_s(rate, 1.0, servers), rel=0.07)


def test_with_places_that_are_all_taken_calls_wait_as_the_model_says() -> None:
    fleet = Fleet(hosts=1, nodes=1, places=8)
    load: Change = {
        "tool_wait_s": 1.0,
        "think_s": 30.0,
        "files_in": 0.0,
        "files_out": 0.0,
        "calls_per_session": 1e9,
    }
    free = costs(look_s=0.01)
    # A place is held for 1.02 s, nearly all of it exponential: 200 users take 6.5 of 8 places.
    ours = scenario(200, fleet=fleet, seconds=1500.0, costs=free, change=load)

    seen, said = simulate(ours), predict(ours.work, fleet, free)

    assert seen.answer_s == pytest.approx(said.answer_s, rel=0.05)
    assert said.answer_s > 1.1


@pytest.mark.parametrize("users", [1000, 5000])
def test_the_model_and_the_simulation_agree_within_a_twentieth(users: int) -> None:
    fleet = plan(work(users), costs(), of=NODE)
    ours = scenario(users, fleet=fleet, seconds=200.0)

    seen, said = simulate(ours), predict(ours.work, fleet, costs())

    assert seen.rate == pytest.approx(said.rate, rel=0.05)
    assert seen.answer_s == pytest.approx(said.answer_s, rel=0.05)
    for part, share in seen.busy.items():
        assert share == pytest.approx(said.busy[part], rel=0.05), part


def test_they_agree_too_where_processors_are_three_quarters_busy() -> None:
    fleet = Fleet(hosts=1, nodes=1, cores=5)
    load: Change = {"tool_cpu_s": 0.2, "tool_wait_s": 0.0}
    ours = scenario(420, fleet=fleet, seconds=3000.0, change=load)

    seen, said = simulate(ours), predict(ours.work, fleet, costs())

    assert 0.7 < said.busy["cores"] < 0.8
    assert seen.rate == pytest.approx(said.rate, rel=0.05)
    assert seen.answer_s == pytest.approx(said.answer_s, rel=0.1)


def test_calls_under_way_are_their_rate_times_how_long_they_take() -> None:
    seen = simulate(scenario(seconds=300.0))

    # Little's law; the two sides are counted apart, and only calls across either end of the time can differ.
    assert seen.in_system == pytest.approx(seen.rate * seen.answer_s, rel=0.01)


@pytest.mark.parametrize("dies_at_s", [None, 20.0])
def test_every_call_ends_exactly_once_or_is_under_way(dies_at_s: float | None) -> None:
    seen = simulate(scenario(fleet=THREE, dies_at_s=dies_at_s))

    assert seen.begun == sum(seen.ended.values()) + seen.under_way
    assert len({id(call) for call in seen.calls}) == len(seen.calls)
    assert all(call.ended_s > call.began_s for call in seen.calls)


def test_as_a_node_dies_no_call_runs_twice_that_must_not() -> None:
    load: Change = {"tool_wait_s": 5.0}
    seen = simulate(scenario(2000, fleet=replace(THREE, places=256), dies_at_s=20.0, change=load))
    again = [call for call in seen.calls if call.runs > 1]
    lost = [call for call in seen.calls if call.outcome == "lost"]

    assert len(again) > 10
    assert all(call.is_idempotent for call in again)
    assert len(lost) > 10
    assert all(call.runs == 1 and not call.is_idempotent for call in lost)
    assert all(call.runs >= 1 for call in seen.calls if call.outcome == "answered")


def test_as_a_node_dies_its_calls_are_elsewhere_within_ten_seconds() -> None:
    seen = simulate(scenario(fleet=THREE, dies_at_s=20.0))
    without = simulate(scenario(fleet=THREE))

    lost_s = [call.took_s for call in seen.calls if call.outcome == "lost"]
    assert 6 < max(lost_s) < 10
    # From finding out until the answer it takes what any first call does.
    assert max(call.took_s for call in seen.calls) < 10 + max(call.took_s for call in without.calls)


def test_users_of_a_dead_node_are_cold_once_and_others_never() -> None:
    before = simulate(scenario(fleet=THREE, seconds=120.0, change={"calls_per_session": 1e9}))
    after = simulate(scenario(fleet=THREE, seconds=120.0, change={"calls_per_session": 1e9}, dies_at_s=20.0))

    assert sum(call.is_cold for call in before.calls) == 0
    # A third of a thousand, of whom nearly all ask again within 100 s.
    assert sum(call.is_cold for call in after.calls) == pytest.approx(334, rel=0.1)


def test_the_share_of_warm_calls_is_what_the_length_of_sessions_says() -> None:
    seen = simulate(scenario(seconds=900.0, change={"calls_per_session": 10}))

    assert seen.warm == pytest.approx(0.9, abs=0.01)


def test_places_that_run_out_are_refused_after_half_a_minute() -> None:
    full = Fleet(hosts=1, nodes=1, places=1)
    seen = simulate(scenario(100, fleet=full, seconds=120.0, change={"tool_wait_s": 5.0, "think_s": 1.0}))
    busy = [call for call in seen.calls if call.outcome == "busy"]

    assert len(busy) > 50
    assert all(30 < call.took_s < 32 for call in busy)
    assert all(call.runs == 0 for call in busy)


def test_new_users_are_spread_over_nodes_that_are_equally_free() -> None:
    ways: tuple[Placing, ...] = ("users", "places")
    spread = {
        placing: simulate(
            scenario(200, fleet=replace(TWO, nodes=4), placing=placing, settled=False, warm_up_s=60.0)
        ).users_of_nodes
        for placing in ways
    }

    assert max(spread["users"]) - min(spread["users"]) <= 1
    assert max(spread["places"]) <= 1.2 * min(spread["places"])


def test_the_same_seed_gives_the_same_calls_and_another_one_others() -> None:
    one, same, other = (
        [(call.began_s, call.ended_s) for call in simulate(scenario(100, seed=seed)).calls]
        for seed in (1, 1, 2)
    )

    assert one == same
    assert one != other
