"""What the simulation shows, as tables: beside the model, with a node lost, with places that run out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import table
from benchmarks.fleet.figures import costs
from benchmarks.fleet.model import plan, predict
from benchmarks.fleet.plots import draw_loss
from benchmarks.fleet.simulation import Call, Placing, Result, Scenario, Wakes, simulate
from benchmarks.fleet.sizes import NODE, SIZES, work
from benchmarks.fleet.workload import Fleet, Workload
from benchmarks.rounds import progress

__all__ = ["agreement_table", "flood_table", "loss_table", "placing_table", "waiting_table"]

_SECONDS = {10: 3600.0, 1_000: 600.0, 100_000: 30.0}
_DIES_AT_S = 10.0
_LOSS_S = 40.0


def agreement_table(share: float) -> str:
    """Return the model and the simulation side by side; `share` of the usual time is simulated."""
    rows = []
    for users in SIZES:
        load, fleet = work(users), plan(work(users), costs(), of=NODE)
        progress(f"simulation: {users:,} users")
        seen = simulate(Scenario(work=load, fleet=fleet, costs=costs(), seconds=share * _SECONDS[users]))
        said = predict(load, fleet, costs())
        rows.append(
            (
                f"{users:,}",
                f"{len(seen.calls):,}",
                f"{seen.rate:,.2f} / {said.rate:,.2f}",
                f"{1000 * seen.answer_s:.1f} / {1000 * said.answer_s:.1f}",
                f"{1000 * seen.percentile_s(0.99):.0f}",
                *(_both(100 * seen.busy[part], 100 * said.busy[part]) for part in ("host", "cores", "redis")),
                f"{seen.in_system:.2f} / {seen.rate * seen.answer_s:.2f}",
                _both(100 * seen.warm, 100 * (1 - load.cold)),
            )
        )  # fmt: skip
    headings = (
        "users", "calls", "calls/s", "mean answer ms", "p99 ms", "hosts busy %", "processors %", "Redis %",
        "under way, Little", "warm %",
    )  # fmt: skip
    return table(headings, rows)


def _both(seen: float, said: float) -> str:
    return f"{seen:.1f} / {said:.1f}"


def loss_table(folder: Path | None) -> str:
    """Return what becomes of calls as one node dies; draw it for 1,000 users, where a folder is named."""
    rows = []
    for users in SIZES:
        fleet = plan(work(users), costs(), of=NODE)
        progress(f"simulation: a node of {fleet.fleets * fleet.nodes} dies beside {users:,} users")
        scenario = Scenario(
            work=work(users), fleet=fleet, costs=costs(), seconds=_LOSS_S, dies_at_s=_DIES_AT_S
        )
        seen = simulate(scenario)
        rows.append((f"{users:,}", f"{fleet.fleets * fleet.nodes}", *_of_loss(seen, scenario)))
        if folder is not None and users == SIZES[1]:
            path = folder / "scale_loss.svg"
            begin_s = scenario.warm_up_s
            draw_loss(seen.calls, path, begin_s=begin_s, died_s=begin_s + _DIES_AT_S, seconds=_LOSS_S)
    headings = (
        "users", "nodes", "calls", "told that they may have run", "run again", "run twice, not idempotent",
        "longer than 1 s", "longest s", "E_BUSY",
    )  # fmt: skip
    return table(headings, rows)


def _of_loss(seen: Result, scenario: Scenario) -> Iterator[str]:
    again = [call for call in seen.calls if call.runs > 1]
    yield f"{len(seen.calls):,}"
    yield str(sum(call.outcome == "lost" for call in seen.calls))
    yield str(len(again))
    yield str(sum(not call.is_idempotent for call in again))
    died_s = scenario.warm_up_s + _DIES_AT_S
    yield str(sum(call.took_s > 1 and call.ended_s > died_s for call in seen.calls))
    yield f"{max(call.took_s for call in seen.calls):.1f}"
    yield str(seen.ended["busy"])


def placing_table() -> str:
    """Return how users spread over nodes that all are empty at first."""
    rows = []
    orders: tuple[Placing, ...] = ("places", "users")
    for users in (10, 1_000, 10_000):
        for placing in orders:
            seen = simulate(
                Scenario(
                    work=replace(work(users), calls_per_session=1e9),
                    fleet=replace(NODE, hosts=2, nodes=4),
                    costs=costs(), seconds=120.0, warm_up_s=60.0, placing=placing, settled=False,
                )
            )  # fmt: skip
            taken = seen.users_of_nodes
            rows.append(
                (
                    f"{users:,}",
                    {"places": "most free places (as it is)", "users": "fewest users"}[placing],
                    ", ".join(f"{one:,}" for one in sorted(taken, reverse=True)),
                    f"{max(taken) / (sum(taken) / len(taken)):.2f}",
                )
            )
    return table(("users", "a new user goes to", "users of the nodes", "fullest to mean"), rows)


def waiting_table() -> str:
    """Return what happens as places run out."""
    fleet = Fleet(hosts=2, nodes=2, places=16)
    rows = []
    for users in (100, 150, 200, 300, 600):
        load = _slow(users)
        ways: tuple[Wakes, ...] = ("turns", "all")
        seen, woken = (
            simulate(Scenario(work=load, fleet=fleet, costs=costs(), seconds=40.0, wakes=wakes))
            for wakes in ways
        )
        said = predict(load, fleet, costs())
        rows.append(
            (
                f"{users:,}",
                f"{100 * said.busy['places']:.0f}",
                f"{seen.rate:.1f} / {said.rate:.1f}",
                f"{seen.answer_s:.1f} / {said.answer_s:.1f}",
                f"{seen.percentile_s(0.99):.1f}",
                str(seen.ended["busy"]),
                f"{seen.places_asked / len(seen.calls):,.0f}",
                f"{100 * seen.busy['redis']:.0f} / {100 * said.busy['redis']:.0f}",
                f"{woken.places_asked / len(woken.calls):,.0f}",
                f"{100 * woken.busy['redis']:.0f}",
                f"{woken.answer_s:.1f}",
            )
        )
    headings = (
        "users", "places taken %", "calls/s", "mean answer s", "p99 s", "E_BUSY", "asked for a place, a call",
        "Redis busy %", "asked, were all woken", "Redis busy % then", "mean answer s then",
    )  # fmt: skip
    return table(headings, rows)


def flood_table() -> str:
    """Return what others feel of one user who keeps many calls under way."""
    fleet = Fleet(hosts=2, nodes=2, places=16)
    rows = []
    for flood in (0, 4, 16, 100):
        seen = simulate(Scenario(work=_slow(60), fleet=fleet, costs=costs(), seconds=40.0, flood=flood))
        others = [call for call in seen.calls if not call.of_flood]
        rows.append(
            (
                str(flood),
                f"{len(seen.calls) - len(others):,}",
                f"{len(others):,}",
                f"{_mean_s(others):.2f}",
                f"{sorted(call.took_s for call in others)[int(0.99 * len(others))]:.2f}",
                f"{100 * seen.busy['redis']:.0f}",
            )
        )
    headings = (
        "calls kept under way",
        "its calls",
        "others' calls",
        "others' mean s",
        "p99 s",
        "Redis busy %",
    )
    return table(headings, rows)


def _slow(users: int) -> Workload:
    return replace(work(users), think_s=5.0, tool_wait_s=1.0, files_in=0.0, files_out=0.0)


def _mean_s(calls: list[Call]) -> float:
    return sum(call.took_s for call in calls) / len(calls)
