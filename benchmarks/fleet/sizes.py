"""The three sizes that the document works out, and what the model says of them, as tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.curves.curve import Curve, Panel
from benchmarks.figures import table
from benchmarks.fleet.figures import FIGURES, Costs, costs
from benchmarks.fleet.model import MAX_CLIENTS, PARTS, plan, predict, use_of
from benchmarks.fleet.workload import GIB, MIB, Fleet, Workload

__all__ = [
    "NODE",
    "SIZES",
    "bottlenecks_table",
    "busy_curve",
    "figures_table",
    "million_table",
    "needs_curve",
    "sensitivity_table",
    "shopping_table",
    "work",
]

SIZES = (10, 1_000, 100_000)
"""Users at once."""

NODE = Fleet()
"""What one worker node is like."""

_MILLION = 1_000_000
_HOUR_S = 3600.0

_REMEDIES: Mapping[str, str] = {
    "host": "more host processes; from about 20 in one fleet, a further fleet",
    "node": "more nodes, or two nodes on one machine",
    "cores": "more nodes, or more processors each",
    "places": "`max_calls` of the nodes, if memory allows; else more nodes",
    "memory": "a smaller `session_idle_s`, Python 3.13, more memory or nodes",
    "network": "more nodes, or a faster network",
    "redis": "a further fleet with a Redis of its own: a faster machine is all that one Redis gains from",
    "connections": "`maxclients`, or a further fleet",
}


def work(users: int) -> Workload:
    """Return what so many users ask for."""
    return Workload(users=users)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One change of the load, or of what things cost."""

    name: str
    work: Workload
    costs: Costs


def figures_table() -> str:
    """Return every input with its unit, range and source."""
    rows = [
        (
            figure.what,
            f"{figure.value:g} {figure.unit}".strip(),
            f"{figure.low:g} to {figure.high:g}" if figure.low != figure.high else "",
            figure.kind,
            figure.source,
        )
        for figure in FIGURES.values()
    ]
    return table(("what", "value", "range", "kind", "source"), rows)


def shopping_table() -> str:
    """Return what each size needs."""
    made = [(users, plan(work(users), costs(), of=NODE)) for users in SIZES]
    said = [(users, fleet, predict(work(users), fleet, costs())) for users, fleet in made]
    connections = [MAX_CLIENTS * one.busy["connections"] for *_, one in said]
    return table(
        ("", *(f"{users:,} users" for users in SIZES)),
        [
            ("fleets, each with one Redis", *(f"{fleet.fleets}" for _, fleet, _ in said)),
            ("host processes of each", *(f"{fleet.hosts}" for _, fleet, _ in said)),
            (f"worker nodes of each ({_of_node()})", *(f"{fleet.nodes}" for _, fleet, _ in said)),
            ("worker nodes in all", *(f"{fleet.fleets * fleet.nodes}" for _, fleet, _ in said)),
            ("`max_calls` of a node", *(f"{fleet.places}" for _, fleet, _ in said)),
            ("`max_calls` of a host, at least", *(f"{fleet.nodes * fleet.places}" for _, fleet, _ in said)),
            ("calls a second", *(f"{found.rate:,.1f}" for *_, found in said)),
            ("commands of a Redis a second", *(_each(one.redis_commands, fleet) for _, fleet, one in said)),
            ("connections of a Redis", *(f"{number:,.0f}" for number in connections)),
            ("S3: requests a second", *(f"{found.s3_requests:,.1f}" for *_, found in said)),
            ("S3: MiB a second", *(f"{found.s3_bytes / MIB:,.1f}" for *_, found in said)),
            ("mean answer, ms", *(f"{1000 * found.answer_s:.0f}" for *_, found in said)),
        ],
    )  # fmt: skip


def _of_node() -> str:
    return f"{NODE.cores} processors, {NODE.node_bytes // GIB} GiB"


def _each(value: float, fleet: Fleet) -> str:
    return f"{value / fleet.fleets:,.0f}"


def bottlenecks_table() -> str:
    """Return how busy each part is at each size, and what is first to end."""
    rows: list[tuple[str, ...]] = []
    said = [predict(work(users), plan(work(users), costs(), of=NODE), costs()) for users in SIZES]
    for part, name in PARTS.items():
        shares = (
            f"**{_percent(one.busy[part])}**" if one.first == part else _percent(one.busy[part])
            for one in said
        )
        rows.append((name, *shares, _REMEDIES[part]))
    return table(("", *(f"{users:,} users" for users in SIZES), "more of it by"), rows)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2f} %"


def million_table() -> str:
    """Return what a million calls take at each size."""
    made = [(users, plan(work(users), costs(), of=NODE)) for users in SIZES]
    columns = [[*_million(work(users), fleet)] for users, fleet in made]
    names = [name for name, _ in columns[0]]
    rows = [(name, *(f"{column[index][1]:,.1f}" for column in columns)) for index, name in enumerate(names)]
    return table(("", *(f"{users:,} users" for users in SIZES)), rows)


def _million(load: Workload, fleet: Fleet) -> Iterator[tuple[str, float]]:
    known, use, found = costs(), use_of(load, costs()), predict(load, fleet, costs())
    hours = _MILLION / found.rate / _HOUR_S
    per_hour = _MILLION / _HOUR_S
    nodes, hosts = fleet.fleets * fleet.nodes, fleet.fleets * fleet.hosts
    yield "hours until they are made", hours
    yield "core-hours used: hosts", per_hour * (known.host_s + fleet.hosts * known.heard_s)
    yield "core-hours used: nodes, tools apart", per_hour * (known.node_s + use.cores_s - load.tool_cpu_s)
    yield "core-hours used: tools", per_hour * load.tool_cpu_s
    yield "core-hours used: Redis", hours * fleet.fleets * found.busy["redis"]
    yield "core-hours there: nodes, hosts, Redis", hours * (nodes * fleet.cores + hosts + fleet.fleets)
    yield "GiB-hours used: users on nodes", hours * load.users * use.residents * known.user_bytes / GIB
    yield (
        "GiB-hours there: nodes, hosts, Redis",
        hours * (nodes * fleet.node_bytes / GIB + hosts * 0.5 + fleet.fleets),
    )
    yield "million commands of Redis", hours * _HOUR_S * found.redis_commands / _MILLION
    yield "thousand requests to S3 that write", 3 / 5 * load.files_out * known.put_requests * 1000
    yield (
        "thousand requests to S3 that read",
        (load.files_in * known.get_requests + 2 / 5 * load.files_out * known.put_requests) * 1000,
    )
    yield "GiB to S3", load.files_out * load.file_bytes * _MILLION / GIB
    yield "GiB from S3", load.files_in * load.file_bytes * _MILLION / GIB


def sensitivity_table(users: int) -> str:
    """Return what a number of users needs where one thing is different."""
    rows = []
    for change in _changes(users):
        fleet = plan(change.work, change.costs, of=NODE)
        found = predict(change.work, fleet, change.costs)
        rows.append(
            (
                change.name,
                f"{found.rate:,.0f}",
                f"{fleet.fleets}",
                f"{fleet.fleets * fleet.hosts}",
                f"{fleet.fleets * fleet.nodes}",
                f"{1000 * found.answer_s:,.0f}",
                PARTS[found.first],
            )
        )
    headings = ("what differs", "calls/s", "fleets", "hosts", "nodes", "mean answer ms", "ends first")
    return table(headings, rows)


def _changes(users: int) -> Sequence[_Change]:
    plain = work(users)
    loads = {
        "nothing": plain,
        "think time 5 s": replace(plain, think_s=5.0),
        "think time 120 s": replace(plain, think_s=120.0),
        "5 calls a session: 20 % cold": replace(plain, calls_per_session=5),
        "100 calls a session: 1 % cold": replace(plain, calls_per_session=100),
        "no files": replace(plain, files_in=0.0, files_out=0.0),
        "files of 10 MiB": replace(plain, file_bytes=10 * MIB),
        "files of 100 MiB": replace(plain, file_bytes=100 * MIB),
        "a tool takes 200 ms of a processor": replace(plain, tool_cpu_s=0.2),
        "a tool takes 1 s of a processor": replace(plain, tool_cpu_s=1.0),
        "a tool waits for 2 s": replace(plain, tool_wait_s=2.0),
        "files of 1 GiB": replace(plain, file_bytes=GIB),
        "a tool takes 512 MiB": replace(plain, tool_bytes=512 * MIB),
    }
    dear = costs(**_dearest("host_s", "node_s", "redis_s", "worker_s"))
    frugal = costs(user_bytes=15.1 * MIB)
    return [
        *(_Change(name=name, work=load, costs=costs()) for name, load in loads.items()),
        _Change(name="`session_idle_s = 300`", work=replace(plain, session_idle_s=300.0), costs=costs()),
        _Change(name="Python 3.13: 15.1 MiB a user", work=plain, costs=frugal),
        _Change(
            name="both of these",
            work=replace(plain, session_idle_s=300.0),
            costs=frugal,
        ),
        _Change(name="a call costs the most of its range", work=plain, costs=dear),
    ]


def _dearest(*names: str) -> dict[str, float]:
    """Return the highest values of figures that are given in milliseconds, in seconds."""
    return {name: 1e-3 * FIGURES[name].high for name in names}


def busy_curve() -> Curve:
    """Return how busy the parts of one fleet are as its users become more."""
    fleet = replace(NODE, hosts=6, nodes=32)
    busy = Panel(over="users at once, one fleet", shows="% busy")
    answer = Panel(over="users at once, one fleet", shows="mean answer, ms")
    load = Panel(over="users at once, one fleet", shows="a second")
    for users in (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000):
        found = predict(work(users), fleet, costs())
        for part in ("redis", "host", "memory", "cores", "places"):
            busy.add(PARTS[part], users, 100 * found.busy[part])
        answer.add("model", users, 1000 * found.answer_s)
        load.add("commands of Redis", users, found.redis_commands)
        load.add("calls", users, found.rate)
        load.add("requests to S3", users, found.s3_requests)
        load.add("MiB to and from S3", users, found.s3_bytes / MIB)
    return Curve(key="scale_busy", title="Busy", about="", headings=(), panels=(busy, load, answer))


def needs_curve() -> Curve:
    """Return how many of each kind are needed as users become more."""
    needs = Panel(over="users at once", shows="how many are needed")
    nodes = Panel(over="users at once", shows="worker nodes")
    kinds = {
        "as it is": (1800.0, costs()),
        "session_idle_s = 300": (300.0, costs()),
        "and Python 3.13": (300.0, costs(user_bytes=15.1 * MIB)),
    }
    for users in (10, 100, 1_000, 10_000, 100_000, 1_000_000):
        for name, (idle_s, known) in kinds.items():
            fleet = plan(replace(work(users), session_idle_s=idle_s), known, of=NODE)
            nodes.add(name, users, fleet.fleets * fleet.nodes)
            if name == "as it is":
                needs.add("worker nodes", users, fleet.fleets * fleet.nodes)
                needs.add("host processes", users, fleet.fleets * fleet.hosts)
                needs.add("fleets, each with a Redis", users, fleet.fleets)
    return Curve(key="scale_needs", title="Needs", about="", headings=(), panels=(needs, nodes))
