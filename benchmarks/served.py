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

from benchmarks.blocks import Block, Load, run_block
from benchmarks.calm import Calm
from benchmarks.figures import TIMES, Target, table
from benchmarks.processes import memory_mib
from benchmarks.report import Section
from benchmarks.rounds import progress, rounds
from benchmarks.series import BASE, HEADINGS, OURS, Series
from benchmarks.servers import PANDAS_TOOLS, TOOLS, USER, Kind, Server, Transport, serving

__all__ = ["PLAN", "SETTLE_S", "STOCKED", "Asked", "compare"]

STOCKED = Load(name="stocked", think_s=0.012)
SETTLE_S = 0.3
PROXIED = "fastmcp proxy"

_ONE = Load(name="saturated, 1 client")
_CROWD = Load(name="saturated, 16 clients", in_flight=16)
_MANY = Load(name="saturated, 64 clients", in_flight=64)
_KINDS: dict[str, Kind] = {BASE: "plain", OURS: "runner", PROXIED: "proxied"}
_WARM_UP_CALLS = 20
_STOCKED_LIMIT = 0.8
_PANDAS_LIMIT = 0.9
_SATURATED_LIMIT = 1.0
_P99_LIMIT = 0.5
_RATE_LIMIT = 1.6
_WORKER_LIMIT_MIB = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of the servers of one tool file.

    Attributes:
        tools: The tool file.
        tool: What is called.
        arguments: With what.
        load: How hard.
        times: How many times the calls of an ordinary block are made.
    """

    tools: Path = TOOLS
    tool: str
    arguments: dict[str, str]
    load: Load = STOCKED
    times: int = 1

    @property
    def sides(self) -> dict[str, Kind]:
        """Who serves it: the proxy makes no difference to what a tool does, so it has one tool file."""
        return {side: kind for side, kind in _KINDS.items() if self.tools == TOOLS or side != PROXIED}


PLAN = (
    Asked(tool="echo_async", arguments={"text": "hello"}),
    Asked(tool="echo", arguments={"text": "hello"}),
    Asked(tool="echo_home", arguments={"text": "hello", "username": USER}),
    Asked(tools=PANDAS_TOOLS, tool="totals", arguments={"text": "hello"}),
    Asked(tool="echo_async", arguments={"text": "hello"}, load=_ONE, times=2),
    Asked(tool="echo_async", arguments={"text": "hello"}, load=_CROWD, times=4),
    Asked(tool="echo_async", arguments={"text": "hello"}, load=_MANY, times=4),
)


def compare(
    transport: Transport, folder: Path, *, calls: int, most: int, seconds: float, patience_s: float
) -> Section:
    """Measure the whole plan over one transport.

    Args:
        transport: How the servers are spoken to.
        folder: Where they keep their files.
        calls: Of a block.
        most: Rounds; each asks everything of every server once.
        seconds: After which no further round begins.
        patience_s: How long to wait for calm, in all.
    """
    series = [Series(transport=transport, load=asked.load, tool=asked.tool) for asked in PLAN]
    with ExitStack() as stack:
        servers = _served(transport, folder, stack)
        calm = Calm(patience_s)
        for number in rounds(f"servers over {transport}", most, seconds):
            for asked, one in zip(PLAN, series, strict=True):
                # Whoever comes first in a round comes last in another.
                sides = [*asked.sides][number % len(asked.sides) :] + [*asked.sides][
                    : number % len(asked.sides)
                ]
                take = partial(
                    _side_by_side, asked, {side: servers[side, asked.tools] for side in sides}, calls
                )
                for side, block in calm.measure(take).items():
                    one.add(side, block)
        time.sleep(SETTLE_S)
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
    for asked in PLAN:
        for side, kind in asked.sides.items():
            if (side, asked.tools) not in servers:
                progress(f"starting {side} over {transport}, {asked.tools.name}")
                starting = serving(kind, transport, folder, tools=asked.tools)
                servers[side, asked.tools] = stack.enter_context(starting)
            server = servers[side, asked.tools]
            run_block(server, asked.tool, asked.arguments, calls=_WARM_UP_CALLS, load=STOCKED)
    return servers


def _side_by_side(asked: Asked, servers: dict[str, Server], calls: int) -> dict[str, Block]:
    blocks = {}
    for side, server in servers.items():
        # The other server's pool refills meanwhile, which is work of its own block.
        time.sleep(SETTLE_S)
        blocks[side] = run_block(
            server, asked.tool, asked.arguments, calls=calls * asked.times, load=asked.load
        )
    return blocks


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
