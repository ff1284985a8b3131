"""Servers side by side: plain FastMCP, the runner, and a FastMCP proxy in front of a stdio server.

Two regimes, reported apart. *Stocked*: a pause after each call, so a parked worker waits for the
next one; it is what a user feels. *Saturated*: no pause, so the processor time that a worker costs decides.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.blocks import Block, Load, run_block
from benchmarks.calm import Calm
from benchmarks.figures import TIMES, Target, table
from benchmarks.report import Section, progress
from benchmarks.series import BASE, HEADINGS, OURS, Series
from benchmarks.servers import PANDAS_TOOLS, TOOLS, USER, Kind, Server, Transport, serving

__all__ = ["STOCKED", "compare", "memory_mib"]

STOCKED = Load(name="stocked", think_s=0.012)
_SETTLE_S = 0.3
_PROXIED = "fastmcp proxy"

_ONE = Load(name="saturated, 1 client")
_CROWD = Load(name="saturated, 16 clients", in_flight=16)
_MANY = Load(name="saturated, 64 clients", in_flight=64)
_KINDS: dict[str, Kind] = {BASE: "plain", OURS: "runner", _PROXIED: "proxied"}
_WARM_UP_CALLS = 20
_STOCKED_LIMIT = 0.8
_PANDAS_LIMIT = 0.9
_SATURATED_LIMIT = 1.0
_P99_LIMIT = 0.5
_RATE_LIMIT = 1.6
_WORKER_LIMIT_MIB = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One load on the servers of one tool file.

    Attributes:
        tools: The tool file.
        tool: The tool that is called.
        arguments: Its arguments.
        load: The load.
        times: The length of a block, in ordinary blocks.
    """

    tools: Path = TOOLS
    tool: str
    arguments: dict[str, str]
    load: Load = STOCKED
    times: int = 1

    @property
    def sides(self) -> dict[str, Kind]:
        """The servers that are compared: behind the proxy one tool file is enough."""
        return {side: kind for side, kind in _KINDS.items() if self.tools == TOOLS or side != _PROXIED}


_PLAN = (
    _Asked(tool="echo_async", arguments={"text": "hello"}),
    _Asked(tool="echo", arguments={"text": "hello"}),
    _Asked(tool="echo_home", arguments={"text": "hello", "username": USER}),
    _Asked(tools=PANDAS_TOOLS, tool="totals", arguments={"text": "hello"}),
    _Asked(tool="echo_async", arguments={"text": "hello"}, load=_ONE, times=2),
    _Asked(tool="echo_async", arguments={"text": "hello"}, load=_CROWD, times=4),
    _Asked(tool="echo_async", arguments={"text": "hello"}, load=_MANY, times=4),
)


def compare(transport: Transport, folder: Path, *, calls: int, rounds: int, patience_s: float) -> Section:
    """Measure the whole plan over one transport.

    Args:
        transport: The transport of the servers.
        folder: The folder of their files.
        calls: The calls of a block.
        rounds: The number of rounds, each of one block for every load and server.
        patience_s: The longest wait for a quiet machine, in all.
    """
    series = [Series(transport=transport, load=plan.load, tool=plan.tool) for plan in _PLAN]
    with ExitStack() as stack:
        servers = _served(transport, folder, stack)
        calm = Calm(patience_s)
        for number in range(rounds):
            progress(f"servers over {transport}: round {number + 1} of {rounds}")
            for plan, one in zip(_PLAN, series, strict=True):
                # The first side of a round is the last of another.
                turn, sides = number % len(plan.sides), [*plan.sides]
                ordered = {side: servers[side, plan.tools] for side in (*sides[turn:], *sides[:turn])}
                take = partial(_side_by_side, plan, ordered, calls)
                for side, block in calm.measure(take).items():
                    one.add(side, block)
        time.sleep(_SETTLE_S)
        memory = memory_mib(servers[OURS, TOOLS].process.pid)
    rows = [row for one in series for row in one.rows()]
    idle = "; ".join(f"{part} {', '.join(f'{mib:.1f}' for mib in mibs)}" for part, mibs in memory.items())
    text = f"{table(HEADINGS, rows)}\n\nBeside the blocks {calm}. Unique memory (USS), idle, MiB: {idle}."
    return Section(
        key=f"served_{transport}",
        title=f"Servers over {transport}",
        text=text,
        facts={"series": [one.facts() for one in series], "memory_mib": memory, "calm": str(calm)},
        targets=[*_targets(series), *_memory_targets(transport, memory)],
    )


def _served(transport: Transport, folder: Path, stack: ExitStack) -> dict[tuple[str, Path], Server]:
    """Start every server of the plan and warm it up; they end with the stack."""
    servers: dict[tuple[str, Path], Server] = {}
    for load in _PLAN:
        for side, kind in load.sides.items():
            if (side, load.tools) not in servers:
                progress(f"starting {side} over {transport}, {load.tools.name}")
                starting = serving(kind, transport, folder, tools=load.tools)
                servers[side, load.tools] = stack.enter_context(starting)
            server = servers[side, load.tools]
            run_block(server, load.tool, load.arguments, calls=_WARM_UP_CALLS, load=STOCKED)
    return servers


def _side_by_side(plan: _Asked, servers: dict[str, Server], calls: int) -> dict[str, Block]:
    blocks = {}
    for side, server in servers.items():
        # The other server's pool refills meanwhile, which is work of its own block.
        time.sleep(_SETTLE_S)
        blocks[side] = run_block(server, plan.tool, plan.arguments, calls=calls * plan.times, load=plan.load)
    return blocks


def memory_mib(host: int) -> dict[str, list[float]]:
    """Return the unique memory (USS), in MiB, of the processes below a host, by their part.

    A host has one forkserver, whose children are zygotes, whose children are workers.
    """
    generation = [psutil.Process(host)]
    found: dict[str, list[float]] = {}
    for part in ("host", "forkserver", "zygote", "worker"):
        found[part] = [process.memory_full_info().uss / (1 << 20) for process in generation]
        generation = [child for process in generation for child in process.children()]
    if not found["worker"]:
        raise RuntimeError(f"the host {host} has no parked worker to measure")
    return found


def _targets(series: list[Series]) -> Iterator[Target]:
    for one in series:
        if one.load == STOCKED:
            limit = _PANDAS_LIMIT if one.tool == "totals" else _STOCKED_LIMIT
            what = f"{one.name}: median, to plain FastMCP"
            yield Target(what=what, limit=limit, measured=one.ratio(), unit=TIMES)
        elif one.load == _ONE:
            what = f"{one.name}: median, to plain FastMCP"
            yield Target(what=what, limit=_SATURATED_LIMIT, measured=one.ratio(), unit=TIMES)
        else:
            # Over stdio one client asks as much at once.
            if one.load == _CROWD:
                late = one.ratio(share=0.99)
                yield Target(what=f"{one.name}: p99, to plain", limit=_P99_LIMIT, measured=late, unit=TIMES)
            rate = one.rate(OURS) / one.rate(BASE)
            what = f"{one.name}: calls a second, to plain"
            yield Target(what=what, limit=_RATE_LIMIT, measured=rate, unit=TIMES, bound="least")


def _memory_targets(transport: Transport, memory: dict[str, list[float]]) -> Iterator[Target]:
    what = f"{transport}: unique memory of an idle warm worker"
    measured = max(memory["worker"])
    yield Target(what=what, limit=_WORKER_LIMIT_MIB, measured=measured, unit=" MiB")
