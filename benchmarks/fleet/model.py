"""The capacity of a fleet in closed formulas: how busy each part is, which ends first, how much is needed.

Sources: Little's law; the operational bounds of Denning and Buzen; Erlang's delay formula; for a queue with
one server and constant service, the formula of Pollaczek and Khinchine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.fleet.figures import Costs
from benchmarks.fleet.workload import MIB, Fleet, Workload

__all__ = [
    "MAX_CLIENTS",
    "PARTS",
    "Prediction",
    "Use",
    "erlang_c",
    "fits",
    "mean_wait_s",
    "plan",
    "predict",
    "use_of",
]

PARTS = {
    "host": "host processes",
    "node": "a node's own process",
    "cores": "processors of nodes",
    "places": "places of nodes",
    "memory": "memory of nodes",
    "network": "network of nodes",
    "redis": "Redis",
    "connections": "connections of Redis",
}
"""What can end first."""

MAX_CLIENTS = 10_000
"""`maxclients` of Redis, unless it is told otherwise."""

_RENEWED_A_SECOND = 4.5
"""Commands a second for each call that runs: its host renews 7 every 2 s, its node asks one every second."""

_MEMORY_FULL = 0.8
"""How much of a node's memory may be used: the rest is the kernel's, the host's and the files'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What calls use, whatever there is of it.

    Attributes:
        cores_s: Processor seconds of a call on its node, without the node's own process.
        stay_s: Seconds for which a call has a place, where nobody waits.
        files_s: Seconds of them for files.
        s3_requests: Requests to S3 of a call.
        s3_bytes: Bytes to and from S3 of a call.
        residents: Users whom nodes hold for each one who is there: the others have gone without a word.
    """

    cores_s: float
    stay_s: float
    files_s: float
    s3_requests: float
    s3_bytes: float
    residents: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model says of a fleet.

    Attributes:
        rate: Calls a second in all.
        answer_s: Mean time of a call, from the request to the answer.
        busy: How busy each of `PARTS` is; 1 is all there is of it.
        redis_commands: Commands a second of all Redis together.
        redis_of_watching: The share of Redis' processor time that is no call's.
        s3_requests: Requests a second to S3.
        s3_bytes: Bytes a second to and from S3.
    """

    rate: float
    answer_s: float
    busy: Mapping[str, float]
    redis_commands: float
    redis_of_watching: float
    s3_requests: float
    s3_bytes: float

    @property
    def first(self) -> str:
        """Return which of `PARTS` ends first as users become more."""
        return max(self.growing, key=lambda part: self.growing[part])

    @property
    def growing(self) -> Mapping[str, float]:
        """Return how busy each of `PARTS` is that becomes busier with users, the fleet being as it is."""
        return {part: share for part, share in self.busy.items() if part != "connections"}


def use_of(work: Workload, costs: Costs) -> Use:
    """Return what a call uses."""
    files, mib = work.files_in + work.files_out, work.file_bytes / MIB
    files_cpu_s = files * (costs.file_s + mib * costs.mib_s)
    files_s = (
        work.files_in * (costs.get_requests * costs.s3_s + mib * costs.s3_mib_s)
        + work.files_out * (costs.put_requests * costs.s3_s + mib * costs.s3_mib_s)
    )  # fmt: skip
    cores_s = costs.worker_s + work.tool_cpu_s + work.cold * costs.first_s + files_cpu_s
    session_s = work.calls_per_session * work.think_s
    return Use(
        cores_s=cores_s,
        stay_s=costs.node_s + cores_s + work.tool_wait_s + files_s + costs.trip_s,
        files_s=files_s,
        s3_requests=work.files_in * costs.get_requests + work.files_out * costs.put_requests,
        s3_bytes=files * work.file_bytes,
        residents=1 + work.session_idle_s / session_s if session_s else math.inf,
    )


def predict(work: Workload, fleet: Fleet, costs: Costs) -> Prediction:
    """Return how a fleet fares under a load.

    Where something is full, users wait for each other, and the rate is what the narrowest part lets through.
    """
    use = use_of(work, costs)
    bare_s = costs.host_s + costs.redis_s + 3 * costs.trip_s + use.stay_s
    demands = _demands(fleet, costs, use)
    limit = min(1 / demand for demand in demands.values() if demand)
    rate = min(work.users / (work.think_s + bare_s), limit)
    answer_s = bare_s
    # The longer a call takes, the fewer come: found by coming nearer and nearer.
    for _ in range(200):
        waits_s = _waits_s(rate, fleet, costs, use)
        answer_s = max(bare_s + waits_s, work.users / limit - work.think_s)
        rate = 0.5 * rate + 0.5 * min(work.users / (work.think_s + answer_s), 0.9999 * limit)
    running = rate * use.stay_s / fleet.fleets
    watching = fleet.hosts * fleet.nodes / costs.watch_every_s + _RENEWED_A_SECOND * running
    busy = {part: rate * demand for part, demand in demands.items()}
    busy["redis"] += watching * costs.watch_s
    users = work.users * use.residents / (fleet.fleets * fleet.nodes)
    resident = users * costs.user_bytes + rate * use.stay_s / fleet.fleets / fleet.nodes * work.tool_bytes
    busy["memory"] = resident / (_MEMORY_FULL * fleet.node_bytes)
    busy["connections"] = fleet.hosts * fleet.nodes * costs.connections / MAX_CLIENTS
    return Prediction(
        rate=rate,
        answer_s=answer_s,
        busy=busy,
        redis_commands=rate * costs.redis_commands + fleet.fleets * watching,
        redis_of_watching=watching * costs.watch_s / busy["redis"],
        s3_requests=rate * use.s3_requests,
        s3_bytes=rate * use.s3_bytes,
    )


def _demands(fleet: Fleet, costs: Costs, use: Use) -> dict[str, float]:
    """Return for each part what a call a second in all takes of all there is of it."""
    nodes = fleet.fleets * fleet.nodes
    return {
        # Every host hears of every place that becomes free in its fleet.
        "host": (costs.host_s + fleet.hosts * costs.heard_s) / (fleet.fleets * fleet.hosts),
        "node": costs.node_s / nodes,
        "cores": use.cores_s / (nodes * _cores(fleet)),
        "places": use.stay_s / (nodes * fleet.places),
        "network": use.s3_bytes / MIB * costs.net_mib_s / nodes,
        "redis": (costs.redis_s + fleet.hosts * costs.publish_s) / fleet.fleets,
    }


def _cores(fleet: Fleet) -> int:
    """Return the processors of a node for its workers: one is kept for its own process."""
    return max(1, fleet.cores - 1)


def _waits_s(rate: float, fleet: Fleet, costs: Costs, use: Use) -> float:
    """Return how long a call waits for others, on average."""
    hosts, nodes = fleet.fleets * fleet.hosts, fleet.fleets * fleet.nodes
    host_s = costs.host_s + fleet.hosts * costs.heard_s
    return (
        _constant_wait_s(rate / hosts, host_s)
        + _constant_wait_s(rate / fleet.fleets, costs.redis_s + fleet.hosts * costs.publish_s)
        + _constant_wait_s(rate / nodes, costs.node_s)
        + mean_wait_s(rate / nodes, use.cores_s, _cores(fleet))
        + mean_wait_s(rate / nodes, use.stay_s, fleet.places)
    )


def _constant_wait_s(rate: float, service_s: float) -> float:
    """Return the mean wait for one server whose service always takes as long."""
    busy = min(rate * service_s, 0.9999)
    return busy * service_s / (2 * (1 - busy))


def mean_wait_s(rate: float, service_s: float, servers: int) -> float:
    """Return the mean wait in a queue with several servers and service of very different lengths (M/M/c)."""
    if not rate:
        return 0.0
    offered = min(rate * service_s, 0.9999 * servers)
    return erlang_c(servers, offered) * service_s / (servers - offered)


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability that who comes has to wait, with `offered` Erlang of work.

    Raises:
        ValueError: There is more work than servers, so the queue has no end.
    """
    if not 0 <= offered < servers:
        raise ValueError(f"need 0 <= offered < servers, got {offered} and {servers}")
    # Erlang B, one server after another: no factorial grows too large for it.
    blocked = 1.0
    for each in range(1, servers + 1):
        blocked = offered * blocked / (each + offered * blocked)
    share = offered / servers
    return blocked / (1 - share * (1 - blocked))


def fits(work: Workload, fleet: Fleet, costs: Costs) -> bool:
    """Return whether nothing is busier than it may be, with one node of each fleet gone."""
    less = replace(fleet, nodes=max(1, fleet.nodes - 1))
    busy = predict(work, less, costs).busy
    return all(share <= (1.0 if part == "memory" else costs.full) for part, share in busy.items())


def plan(work: Workload, costs: Costs, *, of: Fleet) -> Fleet:
    """Return the least of each kind that a load needs, and one node and one host more in each fleet.

    Args:
        work: The load.
        costs: What things cost.
        of: What one node is like; how many there are does not matter.
    """
    rate, use = work.users / work.think_s, use_of(work, costs)
    for fleets in range(1, work.users + 1):
        part = rate / fleets
        # As many hosts as it takes, each of which hears of all.
        own = costs.full - part * costs.heard_s
        if own <= 0:
            continue
        hosts = max(1, math.ceil(part * costs.host_s / own)) + 1
        memory = part * use.stay_s * work.tool_bytes + work.users / fleets * use.residents * costs.user_bytes
        nodes = 1 + max(
            math.ceil(part * costs.node_s / costs.full),
            math.ceil(part * use.cores_s / (_cores(of) * costs.full)),
            math.ceil(part * use.stay_s / (of.places * costs.full)),
            math.ceil(part * use.s3_bytes / MIB * costs.net_mib_s / costs.full),
            math.ceil(memory / (_MEMORY_FULL * of.node_bytes)),
        )
        made = replace(of, fleets=fleets, hosts=hosts, nodes=nodes)
        busy = predict(work, made, costs).busy
        if max(busy["redis"], busy["connections"]) <= costs.full:
            return made
    raise ValueError(f"no number of fleets is enough for {work.users} users with {work.think_s} s of thought")
