"""A fleet in simulated time: users who think and call, hosts, Redis, worker nodes, and a node that dies.

What a node, a host or Redis does takes the time that `figures` says; who gets which node, who waits and what
becomes of the calls of a dead node is decided as the fleet itself decides it. Nothing depends on the machine
on which this runs: the same seed gives the same calls.

Sources: `runner/fleet/scripts/place.lua` and `runner/fleet/engine.py` for placing, waiting and taking back;
the recursion of Lindley for queues without an event for each who waits.
"""

import heapq
import random
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import simpy

from benchmarks.fleet.figures import Costs
from benchmarks.fleet.model import use_of
from benchmarks.fleet.workload import Fleet, Workload

__all__ = ["Call", "Result", "Scenario", "Station", "Wakes", "simulate"]

Placing = Literal["places", "users"]
Wakes = Literal["turns", "all"]
Outcome = Literal["answered", "busy", "lost"]
_Events = Generator[simpy.Event, Any, None]

_TAKEN_S = 5.0
"""After which a host takes a call back that no node has taken: `runner/fleet/engine.py`."""

_TRIES = 4
_TURNS = 4
"""How many users are told when a place becomes free: `runner/fleet/scripts/release.lua`."""

_LONGEST_S = 10.0
"""After which a waiting call asks though nobody has told it anything: `runner/fleet/placing.py`."""

_INTO_REDIS = 0.7
_INTO_HOST = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens.

    Attributes:
        work: What users ask for.
        fleet: What serves them.
        costs: What things cost.
        seconds: Simulated time that counts.
        warm_up_s: Simulated time before it.
        seed: Of all that is drawn.
        placing: Where a user without a node goes: to most free places, or to fewest users.
        settled: Whether users begin with a node, evenly spread; else they come one after another.
        dies_at_s: When the first node of the first fleet dies, counted from the end of the warm-up.
        flood: Calls that one more user keeps under way.
        wakes: Who asks again when a place becomes free: some of those whose turn it is, or all who wait.
    """

    work: Workload
    fleet: Fleet
    costs: Costs
    seconds: float = 60.0
    warm_up_s: float = 20.0
    seed: int = 1
    placing: Placing = "places"
    settled: bool = True
    dies_at_s: float | None = None
    flood: int = 0
    wakes: Wakes = "turns"


@dataclass(slots=True, kw_only=True)
class Call:
    """One call, as it went.

    Attributes:
        began_s: When the user asked.
        ended_s: When the answer was there.
        outcome: How it ended: answered, told that there is no room, or told that it may have run.
        is_cold: Whether its user came to a node with it.
        is_idempotent: Whether its tool may run twice.
        runs: How often the tool began.
        waited_s: For a place.
        of_flood: Whether it is of the user who floods.
    """

    began_s: float
    is_idempotent: bool
    ended_s: float = 0.0
    outcome: Outcome = "answered"
    is_cold: bool = False
    runs: int = 0
    waited_s: float = 0.0
    of_flood: bool = False

    @property
    def took_s(self) -> float:
        """Return how long its user waited for the answer."""
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it.

    Attributes:
        calls: Those that ended in the time that counts, in order.
        begun: Calls that began at any time.
        ended: Calls that ended at any time, by outcome.
        under_way: Calls under way at the end.
        in_system: How many were under way on average, in the time that counts.
        busy: How busy hosts, nodes, their processors and Redis were, on average.
        users_of_nodes: Users of each node at the end.
        places_asked: How often a place was asked for, in the time that counts.
        seconds: The time that counts.
    """

    calls: Sequence[Call]
    begun: int
    ended: Counter[Outcome]
    under_way: int
    in_system: float
    busy: dict[str, float]
    users_of_nodes: Sequence[int]
    places_asked: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return calls a second."""
        return len(self.calls) / self.seconds

    @property
    def answer_s(self) -> float:
        """Return the mean time of a call."""
        return sum(call.took_s for call in self.calls) / len(self.calls)

    @property
    def warm(self) -> float:
        """Return the share of calls whose user was known to the node."""
        return 1 - sum(call.is_cold for call in self.calls) / len(self.calls)

    def percentile_s(self, share: float) -> float:
        """Return the time within which that share of the calls ended."""
        took = sorted(call.took_s for call in self.calls)
        return took[min(len(took) - 1, int(share * len(took)))]


class Station:
    """Servers of one kind with one queue, first come, first served."""

    def __init__(self, servers: int) -> None:
        self._free_at = [0.0] * servers
        self.work_s = 0.0

    def ends(self, now: float, service_s: float) -> float:
        """Take who comes now, and return when the service ends. Whoever comes must come in order of time."""
        ends = max(now, self._free_at[0]) + service_s
        heapq.heapreplace(self._free_at, ends)
        self.work_s += service_s
        return ends


@dataclass(slots=True, eq=False)
class _Node:
    own: Station
    cores: Station
    free: int
    users: int = 0
    died_at: float | None = None
    gone_at: float = float("inf")
    running: "dict[simpy.Process, None]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _User:
    node: _Node | None = None
    turn: int = 0
    number: int = 0
    waits_at: int | None = None
    # Of each of their calls that wait, in the order in which they came.
    woken: list[simpy.Event] = field(default_factory=list)
    of_flood: bool = False

    def wake(self) -> None:
        """Have the call that has waited longest ask again."""
        if self.woken:
            self.woken.pop(0).succeed()


@dataclass(slots=True, eq=False)
class _OneFleet:
    """One fleet: its hosts, its Redis, its nodes; and who waits for a place."""

    hosts: list[Station]
    nodes: list[_Node]
    redis: Station
    placing: Placing
    turn: int = 0
    rounds: int = 0
    # Turn and number of each user that waits, in order.
    waiting: list[tuple[int, int]] = field(default_factory=list)
    users: dict[int, _User] = field(default_factory=dict)

    def place(self, user: _User, now: float) -> bool:
        """Give a user a place, as `place.lua` does; return whether there was one."""
        turn = max(user.turn, self.turn)
        node = user.node
        if node is not None and now < node.gone_at:
            free = node.free
        else:
            there = [one for one in self.nodes if now < one.gone_at]
            if not there:
                return self._waits(user, turn)
            self.rounds += 1
            first = self.rounds % len(there)
            # Of nodes that have the same to offer each gets a new user in its turn.
            in_turn = there[first:] + there[:first]
            node = max(in_turn, key=lambda one: one.free if self.placing == "places" else -one.users)
            free = sum(one.free for one in there)
        self.waits_no_more(user)
        if node.free <= 0 or bisect_left(self.waiting, (turn, 0)) >= free:
            return self._waits(user, turn)
        node.free -= 1
        if node is not user.node:
            node.users += 1
            user.node = node
        user.turn, self.turn = turn + 1, turn
        # Their other calls are no longer among those that wait, and ask in order to be.
        user.wake()
        return True

    def whose_turn(self) -> list[_User]:
        """Return the users who are told of a free place."""
        return [self.users[number] for _, number in self.waiting[:_TURNS]]

    def _waits(self, user: _User, turn: int) -> bool:
        self.waits_no_more(user)
        user.waits_at = turn
        insort(self.waiting, (turn, user.number))
        self.users[user.number] = user
        return False

    def waits_no_more(self, user: _User) -> None:
        """Take a user off those who wait."""
        if user.waits_at is not None:
            del self.waiting[bisect_left(self.waiting, (user.waits_at, user.number))]
            del self.users[user.number]
            user.waits_at = None


def simulate(scenario: Scenario) -> Result:
    """Let it happen."""
    return _Simulation(scenario).run()


class _Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._work, self._costs = scenario, scenario.work, scenario.costs
        self._env = simpy.Environment()
        # Which user asks for what is no secret.
        self._drawn = random.Random(scenario.seed)  # noqa: S311
        self._fleets = [self._fleet(scenario.fleet) for _ in range(scenario.fleet.fleets)]
        fleet, costs = scenario.fleet, scenario.costs
        self._host_s = costs.host_s + fleet.hosts * costs.heard_s
        self._redis_s = costs.redis_s + fleet.hosts * costs.publish_s
        use = use_of(self._work, costs)
        self._files_cpu_s = use.cores_s - (
            costs.worker_s + self._work.tool_cpu_s + self._work.cold * costs.first_s
        )
        self._files_s = use.files_s
        self._calls: list[Call] = []
        self._ended: Counter[Outcome] = Counter()
        self._begun = self._under_way = self._asked = 0
        self._area, self._changed_at = 0.0, 0.0

    def run(self) -> Result:
        scenario, env = self._scenario, self._env
        for number in range(self._work.users):
            env.process(self._user(number))
        for fleet in self._fleets:
            env.process(self._looks(fleet))
        if scenario.flood:
            flooder = _User(number=self._work.users, of_flood=True)
            for number in range(scenario.flood):
                env.process(self._floods(flooder, self._fleets[0].hosts[number % scenario.fleet.hosts]))
        if scenario.dies_at_s is not None:
            env.process(self._dies(self._fleets[0].nodes[0], scenario.warm_up_s + scenario.dies_at_s))
        env.run(until=scenario.warm_up_s)
        before, asked = self._work_s(), self._asked
        self._count(0)
        self._area = 0.0
        env.run(until=scenario.warm_up_s + scenario.seconds)
        self._count(0)
        return Result(
            calls=[call for call in self._calls if call.ended_s >= scenario.warm_up_s],
            begun=self._begun,
            ended=self._ended,
            under_way=self._under_way,
            in_system=self._area / scenario.seconds,
            busy={
                part: (used - before[part]) / scenario.seconds / self._servers(part)
                for part, used in self._work_s().items()
            },
            users_of_nodes=[node.users for fleet in self._fleets for node in fleet.nodes],
            places_asked=self._asked - asked,
            seconds=scenario.seconds,
        )

    def _fleet(self, made: Fleet) -> _OneFleet:
        nodes = [
            _Node(own=Station(1), cores=Station(max(1, made.cores - 1)), free=made.places)
            for _ in range(made.nodes)
        ]
        return _OneFleet(
            hosts=[Station(1) for _ in range(made.hosts)],
            nodes=nodes,
            redis=Station(1),
            placing=self._scenario.placing,
        )

    def _user(self, number: int) -> _Events:
        """Think, call, and at times leave, when another one comes instead."""
        work, env, scenario = self._work, self._env, self._scenario
        fleet = self._fleets[number % len(self._fleets)]
        within = number // len(self._fleets)
        host = fleet.hosts[within % len(fleet.hosts)]
        user = _User(number=number)
        if scenario.settled:
            # As many are about to come for the first time as at any later moment.
            if self._drawn.random() >= work.cold:
                user.node = fleet.nodes[within % len(fleet.nodes)]
                user.node.users += 1
        else:
            yield env.timeout(self._drawn.uniform(0, scenario.warm_up_s))
        while True:
            yield env.timeout(self._exponential(work.think_s))
            yield from self._call(fleet, host, user)
            if self._drawn.random() < work.cold:
                user = _User(number=number)

    def _floods(self, user: _User, host: Station) -> _Events:
        while True:
            yield from self._call(self._fleets[0], host, user)

    def _call(self, fleet: _OneFleet, host: Station, user: _User) -> _Events:
        """Make one call, from the question to the answer."""
        env, costs = self._env, self._costs
        call = Call(
            began_s=env.now,
            is_idempotent=self._drawn.random() < self._work.idempotent,
            of_flood=user.of_flood,
        )
        self._begun += 1
        self._count(1)
        yield env.timeout(host.ends(env.now, _INTO_HOST * self._host_s) - env.now)
        call.outcome = "busy"
        for _ in range(_TRIES):
            before = user.node
            placed = yield from self._place(fleet, user, call)
            if not placed:
                break
            call.is_cold = call.is_cold or user.node is not before
            outcome = yield from self._on_node(fleet, user, call)
            if outcome is not None:
                call.outcome = outcome
                break
        out_s = fleet.redis.ends(env.now, (1 - _INTO_REDIS) * self._redis_s) - env.now
        yield env.timeout(out_s + costs.trip_s)
        yield env.timeout(host.ends(env.now, (1 - _INTO_HOST) * self._host_s) - env.now)
        call.ended_s = env.now
        self._count(-1)
        self._ended[call.outcome] += 1
        self._calls.append(call)

    def _place(self, fleet: _OneFleet, user: _User, call: Call) -> Generator[simpy.Event, Any, bool]:
        """Get a place for a call, waiting for one if need be; return whether there was one in time."""
        env, costs = self._env, self._costs
        began = env.now
        service_s = _INTO_REDIS * self._redis_s
        while True:
            self._asked += 1
            yield env.timeout(fleet.redis.ends(env.now, service_s) - env.now + 2 * costs.trip_s)
            if fleet.place(user, env.now):
                call.waited_s += env.now - began
                return True
            if env.now - began > costs.patience_s:
                fleet.waits_no_more(user)
                return False
            # From now on it only asks.
            service_s = costs.place_s
            woken = env.event()
            user.woken.append(woken)
            yield woken | env.timeout(_LONGEST_S)
            if woken in user.woken:
                user.woken.remove(woken)

    def _on_node(
        self, fleet: _OneFleet, user: _User, call: Call
    ) -> Generator[simpy.Event, Any, Outcome | None]:
        """Run a call where it was placed; return how it ended, or None if it is to be placed anew."""
        env, costs, node = self._env, self._costs, user.node
        assert node is not None  # noqa: S101 - it was placed there
        me = env.active_process
        assert me is not None  # noqa: S101 - a process runs this
        has_begun = False
        try:
            if node.died_at is not None:
                # Redis does not know yet that it is dead. Nobody takes the call there.
                yield env.timeout(max(0.0, min(_TAKEN_S, self._found_at(node) - env.now)))
                return None
            node.running[me] = None
            try:
                yield env.timeout(node.own.ends(env.now, costs.node_s) - env.now + costs.trip_s)
                has_begun = True
                call.runs += 1
                ends = node.cores.ends(env.now, self._cpu_s(call))
                yield env.timeout(ends - env.now + self._tool_waits_s())
            except simpy.Interrupt:
                yield env.timeout(max(0.0, self._found_at(node) - env.now))
                return None if call.is_idempotent or not has_begun else "lost"
            finally:
                node.running.pop(me, None)
        finally:
            node.free += 1
            self._frees(fleet)
        return "answered"

    def _frees(self, fleet: _OneFleet) -> None:
        """Have calls of a fleet that wait for a place ask again."""
        if self._scenario.wakes == "turns":
            for user in fleet.whose_turn():
                user.wake()
        else:
            for user in list(fleet.users.values()):
                while user.woken:
                    user.wake()

    def _looks(self, fleet: _OneFleet) -> _Events:
        """Have them ask again now and then, though nobody has heard of a place."""
        while True:
            yield self._env.timeout(self._costs.look_s)
            self._frees(fleet)

    def _cpu_s(self, call: Call) -> float:
        own_s = self._costs.worker_s + self._files_cpu_s + (self._costs.first_s if call.is_cold else 0.0)
        return own_s + self._exponential(self._work.tool_cpu_s)

    def _tool_waits_s(self) -> float:
        return self._files_s + self._exponential(self._work.tool_wait_s)

    def _found_at(self, node: _Node) -> float:
        """Return when a host finds that a node is dead: once it is gone from Redis, at the next look."""
        return node.gone_at + self._drawn.uniform(0, self._costs.watch_every_s)

    def _dies(self, node: _Node, at: float) -> _Events:
        yield self._env.timeout(at)
        node.died_at = at
        # It last said at most a second before that it was there.
        node.gone_at = at + self._costs.dead_s - self._drawn.uniform(0, 1)
        node.users = 0
        for process in list(node.running):
            process.interrupt()

    def _exponential(self, mean: float) -> float:
        return self._drawn.expovariate(1 / mean) if mean else 0.0

    def _count(self, change: int) -> None:
        now = self._env.now
        self._area += self._under_way * (now - self._changed_at)
        self._under_way += change
        self._changed_at = now

    def _stations(self, part: str) -> list[Station]:
        of_part: dict[str, Callable[[_OneFleet], list[Station]]] = {
            "host": lambda fleet: fleet.hosts,
            "redis": lambda fleet: [fleet.redis],
            "node": lambda fleet: [node.own for node in fleet.nodes],
            "cores": lambda fleet: [node.cores for node in fleet.nodes],
        }
        return [station for fleet in self._fleets for station in of_part[part](fleet)]

    def _work_s(self) -> dict[str, float]:
        return {
            part: sum(station.work_s for station in self._stations(part))
            for part in ("host", "node", "cores", "redis")
        }

    def _servers(self, part: str) -> int:
        servers = max(1, self._scenario.fleet.cores - 1) if part == "cores" else 1
        return servers * len(self._stations(part))
