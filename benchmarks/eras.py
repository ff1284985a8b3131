"""What a call costs in each era of the protocol: `runner serve` beside plain FastMCP, in one interleaved run.

A client of the handshake era speaks in a session, as nearly every client does; one of the later era sends
calls that need nothing but themselves. Each round asks every server for a block, in an order that turns;
sessions are begun before, as clients begin one and make many calls in it. The processor time of the server
itself tells more than latency where other programs run beside it.

usage: scripts/bench --eras [--calls N] [--rounds N] [--tools NAME...] [--reuse MODE...] [--other FOLDER]
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.blocks import Load, run_block
from benchmarks.figures import table
from benchmarks.processes import processor_s
from benchmarks.served import SETTLE_S, STOCKED
from benchmarks.servers import ROOT, USER, Kind, Server, Transport, serving

__all__ = ["main"]

ERAS = ("2025-06-18", "2025-11-25", "2026-07-28")
PLAIN, OURS, FRESH, OTHER = "plain FastMCP", "runner serve", "runner serve --fresh", "other checkout"
_SATURATED = Load(name="saturated, 1 client")
_CROWD = Load(name="saturated, 16 clients", in_flight=16)
_MANY = Load(name="saturated, 64 clients", in_flight=64)
_WARM_UP_CALLS = 30
_TOOLS = {"echo_async": {"text": "hello"}, "echo_home": {"text": "hello", "username": USER}}
_HEADINGS = (
    *("transport", "era", "tool", "load", "server"),
    *("median ms", "ratio", "(rounds)", "calls/s, ratio", "server ms a call", "ratio"),
)
_Figures = dict[str, list[float]]


def main() -> None:
    """Measure, and print the report."""
    options = _options()
    rows: list[tuple[str, ...]] = []
    for transport in options.transports:
        for era in options.eras:
            with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
                servers = dict(_serving(transport, era, Path(made), options, stack))
                for tool, load in itertools.product(options.tools, (STOCKED, _SATURATED, _CROWD, _MANY)):
                    rows += _measured(servers, tool, load, options, named=(transport, era, tool, load.name))
    sys.stdout.write(f"{table(_HEADINGS, rows)}\n")


def _serving(
    transport: Transport, era: str, folder: Path, options: argparse.Namespace, stack: ExitStack
) -> Iterator[tuple[str, Server]]:
    """Start every side and warm it up."""
    other: Path | None = options.other
    modes = {"user": OURS, "call": FRESH}
    for side in (PLAIN, *(modes[reuse] for reuse in options.reuse), *([OTHER] if other else [])):
        own = folder / side.replace(" ", "-")
        own.mkdir()
        kind: Kind = "plain" if side == PLAIN else "runner"
        checkout = other if other and side == OTHER else ROOT
        flags = ("--fresh",) if side == FRESH else ()
        # An old checkout may not have that setting, and refuse it.
        settings = {"RUNNER_WORKER_REUSE": ""} if side == OTHER else {}
        opened = serving(kind, transport, own, *flags, settings=settings, checkout=checkout)
        server = stack.enter_context(opened)
        server = replace(server, version=era)
        run_block(server, "echo_async", {"text": "hello"}, calls=_WARM_UP_CALLS, load=STOCKED)
        yield side, server


def _measured(
    servers: dict[str, Server], tool: str, load: Load, options: argparse.Namespace, *, named: Sequence[str]
) -> list[tuple[str, ...]]:
    ask = partial(run_block, tool=tool, arguments=_TOOLS[tool], load=load)
    medians: _Figures = {side: [] for side in servers}
    rates: _Figures = {side: [] for side in servers}
    work: _Figures = {side: [] for side in servers}
    for number in range(options.rounds):
        # Whoever comes first in a round comes last in another.
        sides = [*servers][number % len(servers) :] + [*servers][: number % len(servers)]
        for side in sides:
            connections = servers[side].connect(load.in_flight)
            # Its session and its worker are there, then.
            ask(servers[side], calls=load.in_flight, over=connections)
            time.sleep(SETTLE_S)
            begun = processor_s(servers[side].process.pid)
            block = ask(servers[side], calls=options.calls, over=connections)
            medians[side].append(1000 * statistics.median(block.latencies_s))
            work[side].append(
                1000 * (processor_s(servers[side].process.pid) - begun) / len(block.latencies_s)
            )
            rates[side].append(len(block.latencies_s) / block.elapsed_s)
            for connection in connections:
                connection.close()
    return [_row(side, medians, rates, work, named) for side in servers]


def _row(
    side: str, medians: _Figures, rates: _Figures, work: _Figures, named: Sequence[str]
) -> tuple[str, ...]:
    ratios = [mine / plain for mine, plain in zip(medians[side], medians[PLAIN], strict=True)]
    faster = [mine / plain for mine, plain in zip(rates[side], rates[PLAIN], strict=True)]
    return (
        *named,
        side,
        f"{statistics.median(medians[side]):.2f}",
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{statistics.median(faster):.2f}",
        f"{statistics.median(work[side]):.2f}",
        f"{statistics.median(work[side]) / statistics.median(work[PLAIN]):.2f}",
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench --eras", description=__doc__)
    parser.add_argument("--calls", type=int, default=128, help="calls in a block (128)")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each (7)")
    parser.add_argument("--other", type=Path, help="another checkout, to be measured beside this one")
    parser.add_argument(
        "--tools", nargs="*", choices=_TOOLS, default=["echo_async"], help="tools that are called"
    )
    parser.add_argument("--eras", nargs="*", default=list(ERAS), help="protocol versions")
    parser.add_argument("--transports", nargs="*", default=["http", "stdio"], help="http, stdio")
    parser.add_argument(
        "--reuse",
        nargs="*",
        choices=("user", "call"),
        default=["user"],
        help="workers that stay (user), workers of one call (call), or both side by side",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
