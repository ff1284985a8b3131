"""Many users on one server, a few of them hostile: are the others served as if those were not there?

The same server is asked twice, each time anew: by honest users alone, then by the same beside hostile ones,
whose calls hang, crash, flood, fork, and take memory and disk. So many calls are under way at a time; whose
the next one is, is drawn. Each honest answer has to be right, and each hostile call has to end by its limit.
99 of 100 honest calls may take three times as long at most as without the hostile ones, the host may not
grow, and nothing may be left in the end. With `--engine docket` it is a fleet, whose hosts are asked in
turns: then nodes and Redis may not grow either, and no place and no key of Redis may be left.

usage: scripts/soak --many USERS [--calls N] [--hostile SHARE] [--at-once N] [--quiet-calls N]
                    [--engine docket] [--hosts N] [--nodes N]
"""

import argparse
import asyncio
import itertools
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx2

from benchmarks.soak import SYSV_KEY, UIDS, Server, forkserver_of, post, serving, stop
from benchmarks.soak_calls import HONEST, HOSTILE, Call, Kind
from benchmarks.soak_traces import Traces, host_memory_mib, measure
from sandbox.layers.privileges import adopt_orphans

if TYPE_CHECKING:
    from benchmarks.soak_fleet import Fleet

__all__ = ["many"]

_MOST_TIMES_SLOWER = 3.0
_MOST_GROWTH = 1.05
_WARM_CALLS = 20
_EVERY_HOSTILE_USER = 20
_SAMPLES = 20
_MOST_SHOWN = 30


def many(options: argparse.Namespace) -> None:
    """Run both rounds and print their report; exit status 1 says that one of the promises was not kept."""
    adopt_orphans()
    quiet_calls = options.quiet_calls or max(options.calls // 5, 4 * options.many)
    quiet = _round(options, calls=quiet_calls, hostile=0.0)
    beside = _round(options, calls=options.calls, hostile=options.hostile)
    slower = {
        what: beside.p99_s(what) / quiet.p99_s(what) for what in ("first", "later") if quiet.seconds[what]
    }
    faults = [*quiet.faults, *beside.faults]
    for what, times in slower.items():
        _say(f"99 of 100 {what} calls of honest users: {times:.2f} times as long as in the quiet round")
        if times > _MOST_TIMES_SLOWER:
            faults.append(
                f"{what} calls took {times:.2f} times as long; at most {_MOST_TIMES_SLOWER} are allowed"
            )
    said = [f"LEFT OR WRONG: {fault}" for fault in faults[:_MOST_SHOWN]] or ["all promises kept"]
    _say("\n" + "\n".join(said))
    sys.exit(1 if faults else 0)


@dataclass(slots=True)
class _Round:
    """What one round has shown.

    Attributes:
        seconds: What honest calls took: the first of each user, and later ones.
        endings: How calls ended, by tool.
        faults: What was wrong.
        done: How many calls have been made.
        hostile: How many of them were hostile.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"first": [], "later": []})
    endings: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    done: int = 0
    hostile: int = 0

    def p99_s(self, what: str) -> float:
        ordered = sorted(self.seconds[what])
        return ordered[int(0.99 * len(ordered))]


def _square(arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    # Workers stay with their users here: how many calls one has had, nobody knows.
    results = answer.get("results")
    square = arguments["number"] ** 2
    right = isinstance(results, dict) and results.get("square") == square and results["found"] == []
    return None if right else f"got {str(answer)[:300]}"


_KINDS = tuple(replace(kind, fault=_square) if kind.tool == "square" else kind for kind in HONEST)


def _round(options: argparse.Namespace, *, calls: int, hostile: float) -> _Round:
    token = f"soak-{secrets.token_hex(6)}"
    found = _Round()
    with _ground(options) as ground:
        chosen = random.Random(options.seed)  # noqa: S311 - nobody has to be unable to guess
        drawn = itertools.islice(_drawn(chosen, list(ground.tokens), hostile, token), calls)
        started = time.monotonic()
        samples = asyncio.run(
            _all(ground, drawn, found, at_once=options.at_once, every=max(calls // _SAMPLES, 1))
        )
        lasted = time.monotonic() - started
        end, left, said = ground.end(token)
    # By then almost every user has both pools: a quarter of the calls needs a home.
    warm = next((sample for sample in samples if sample.done >= _WARM_CALLS * options.many), samples[0])
    if calls >= 2 * _WARM_CALLS * options.many:
        found.faults += _grown(warm.memory_mib, samples[-1].memory_mib)
    found.faults += left
    _report(options, found, samples, end, lasted=lasted, hostile=hostile, said=said)
    return found


class _Ground(Protocol):
    """What is asked: one server, or a fleet."""

    @property
    def tokens(self) -> Mapping[str, str]:
        """Return the users, by their tokens."""

    @property
    def urls(self) -> Sequence[str]:
        """Return where they have MCP."""

    def memory_mib(self) -> dict[str, float]:
        """Return the memory of each part that may not grow."""

    def end(self, token: str) -> tuple[str, list[str], list[str]]:
        """End it; return what there was at the end, a line for all that is left, and what was logged."""


@dataclass(frozen=True, slots=True)
class _OneServer:
    """A server of this machine."""

    server: Server
    forkserver: int

    @property
    def tokens(self) -> Mapping[str, str]:
        return self.server.tokens

    @property
    def urls(self) -> Sequence[str]:
        return [self.server.url]

    def memory_mib(self) -> dict[str, float]:
        return {"host": host_memory_mib(self.server.process.pid)}

    def end(self, token: str) -> tuple[str, list[str], list[str]]:
        server, end = self.server, measure(self.server.process.pid)
        traces = Traces(
            forkserver=self.forkserver, uids=UIDS, folder=server.folder, token=token, key=SYSV_KEY
        )
        stop(server)
        left = traces.left()
        said = (server.folder / "log").read_text(errors="replace").splitlines()[1:]
        return f"{end.zygotes} zygotes, {end.workers} workers, {end.descriptors} descriptors", left, said


@dataclass(frozen=True, slots=True)
class _OneFleet:
    """A fleet on this machine."""

    fleet: "Fleet"

    @property
    def tokens(self) -> Mapping[str, str]:
        return self.fleet.tokens

    @property
    def urls(self) -> Sequence[str]:
        return self.fleet.urls

    def memory_mib(self) -> dict[str, float]:
        return self.fleet.memory_mib()

    def end(self, token: str) -> tuple[str, list[str], list[str]]:
        fleet = self.fleet
        ended, places = fleet.alive(), fleet.places()
        each = [(one.name, measure(one.process.pid)) for one in fleet.nodes]
        end = "; ".join(f"{name} {found.zygotes} zygotes, {found.workers} workers" for name, found in each)
        left = [*ended, *places, *fleet.stop(token=token, key=SYSV_KEY)]
        return end, left, fleet.logged()


@contextmanager
def _ground(options: argparse.Namespace) -> Iterator[_Ground]:
    if options.engine == "docket":
        # Only here: it wants the packages of a fleet.
        from benchmarks.soak_fleet import fleet_serving  # noqa: PLC0415

        with fleet_serving(
            options.isolation, users=options.many, hosts=options.hosts, nodes=options.nodes
        ) as fleet:
            yield _OneFleet(fleet)
        return
    with serving(options.isolation, users=options.many, keeps=True) as server:
        yield _OneServer(server, forkserver_of(server.process.pid))


def _grown(warm: Mapping[str, float], end: Mapping[str, float]) -> list[str]:
    """Return a line for each part that has grown since all users had what they will have."""
    return [
        f"memory of {name} went from {warm[name]:.1f} to {mib:.1f} MiB"
        for name, mib in end.items()
        if mib > warm[name] * _MOST_GROWTH
    ]


def _drawn(
    chosen: random.Random, tokens: list[str], hostile: float, token: str
) -> Iterator[tuple[str, Call]]:
    """Yield whose call is next, and which: hostile ones are of a few users, who make no others."""
    bad = tokens[::_EVERY_HOSTILE_USER]
    good = [one for one in tokens if one not in set(bad)]
    known: dict[str, dict[str, Any]] = {"plants": {"token": token}, "makes_sysv": {"key": SYSV_KEY}}
    while True:
        is_hostile = chosen.random() < hostile
        kinds: tuple[Kind, ...] = HOSTILE if is_hostile else _KINDS
        kind = chosen.choices(kinds, [kind.weight for kind in kinds])[0]
        arguments = known.get(kind.tool) or kind.arguments(chosen)
        yield (
            chosen.choice(bad if is_hostile else good),
            Call(kind=kind, arguments=arguments, hostile=is_hostile),
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    """The server and the machine on the way.

    Attributes:
        done: After how many calls.
        seconds: Since the first one.
        memory_mib: Memory of the host, or of each part of a fleet.
        machine_mib: Memory that the machine has left.
        processes: Processes of the machine.
    """

    done: int
    seconds: float
    memory_mib: Mapping[str, float]
    machine_mib: float
    processes: int


async def _all(
    ground: _Ground, drawn: Iterator[tuple[str, Call]], found: _Round, *, at_once: int, every: int
) -> list[_Sample]:
    samples: list[_Sample] = []
    started = time.monotonic()
    known: set[str] = set()
    answered = 0
    limits = httpx2.Limits(max_connections=at_once)

    async def work(client: httpx2.AsyncClient) -> None:
        nonlocal answered
        for token, call in drawn:
            what = "later" if token in known else "first"
            known.add(token)
            number, found.done, found.hostile = found.done, found.done + 1, found.hostile + call.hostile
            begun = time.monotonic()
            ending, fault = await post(
                client, ground.urls[number % len(ground.urls)], call, number, token=token
            )
            if not call.hostile:
                found.seconds[what].append(time.monotonic() - begun)
            found.endings[f"{call.kind.tool}: {ending}"] += 1
            if fault is not None:
                found.faults.append(f"call {number}, {call.kind.tool}: {fault}")
            answered += 1
            if answered % every == 0:
                samples.append(await asyncio.to_thread(_sample, ground, answered, time.monotonic() - started))

    async with httpx2.AsyncClient(timeout=None, limits=limits) as client, asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work(client))
    return samples


def _sample(ground: _Ground, done: int, seconds: float) -> _Sample:
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    left = int(memory["MemAvailable"].split()[0]) / 1024
    processes = sum(1 for name in Path("/proc").iterdir() if name.name.isdigit())
    return _Sample(done, seconds, ground.memory_mib(), left, processes)


def _report(
    options: argparse.Namespace,
    found: _Round,
    samples: list[_Sample],
    end: str,
    *,
    lasted: float,
    hostile: float,
    said: list[str],
) -> None:
    beside = f"{hostile:.1%} of the calls hostile" if hostile else "quiet round"
    _say(f"\n{options.many} users, {options.at_once} calls at once, {beside}")
    _say(f"{found.done} calls, {found.hostile} of them hostile")
    _say(f"{lasted:.0f} s, {found.done / lasted:.1f} calls a second; {len(found.faults)} wrong")
    for what, seconds in found.seconds.items():
        if seconds:
            median, p99 = sorted(seconds)[len(seconds) // 2], found.p99_s(what)
            _say(f"{len(seconds)} {what} calls of honest users: median {median:.3f} s, 99 of 100 {p99:.3f} s")
    parts = list(samples[0].memory_mib) if samples else []
    heads = " | ".join(f"{part} MiB" for part in parts)
    _say(f"\n| calls | seconds | {heads} | left of the machine MiB | processes |")
    _say("|---" * (4 + len(parts)) + "|")
    for one in samples:
        memory = " | ".join(f"{mib:.1f}" for mib in one.memory_mib.values())
        _say(f"| {one.done} | {one.seconds:.0f} | {memory} | {one.machine_mib:.0f} | {one.processes} |")
    _say(f"\nat the end: {end}")
    for ending, number in sorted(found.endings.items()):
        _say(f"{number:6} {ending}")
    _say(f"the server logged {len(said)} lines" + "".join(f"\n  {line[:300]}" for line in said[:10]))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
