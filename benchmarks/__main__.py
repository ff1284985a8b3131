"""The benchmark: both servers side by side in one run, blocks of calls in turn.

Two regimes, reported apart. *Stocked*: a pause after each call, so a parked worker waits for the
next one; it is what a user feels, and what the targets are about. *Saturated*: no pause, so the
processor time that a worker costs decides.

A block beside which other work took the processors is measured again while patience lasts, whatever it
showed: what counts is the machine, never the figure.

usage: scripts/bench --contract
       scripts/bench [--quick] [--only stdio|http] [--calls N] [--rounds N] [--patience SECONDS]
"""

import argparse
import contextlib
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import contract
from benchmarks.blocks import Block, Load, run_block
from benchmarks.calm import Calm
from benchmarks.figures import HEADINGS, Pair, Target, table
from benchmarks.processes import command_seconds, memory_mib
from benchmarks.servers import USER, Server, Transport, serving

LOADS = (
    Load(name="stocked", think_s=0.012),
    Load(name="saturated, 1 client"),
    Load(name="saturated, 8 clients", in_flight=8),
)
TOOLS = {
    "echo": {"text": "hello"},
    "echo_async": {"text": "hello"},
    "echo_home": {"text": "hello", "username": USER},
}
RATIO_LIMITS: dict[Transport, float] = {"stdio": 3.0, "http": 2.0}
COMMAND_LIMIT_S = 1.5
WORKER_LIMIT_MIB = 25.0
WARM_UP_CALLS = 20
SETTLE_S = 0.3


def main() -> None:
    """Run the benchmark and print its report. The exit status says only that it could be run."""
    options = _options()
    if options.contract:
        contract.report(_say, patience_s=options.patience)
        return
    _say(_machine())
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as name:
        folder = Path(name)
        pairs: list[Pair] = []
        memory: dict[str, list[float]] = {}
        for transport in options.only:
            measured, memory = _compare(
                transport, folder, calls=options.calls, rounds=options.rounds, patience_s=options.patience
            )
            pairs += measured
        _say(table(HEADINGS, [pair.row() for pair in pairs]))
        calm = Calm(options.patience)
        command_seconds(folder)  # the first run fills the file cache
        commands = [calm.measure(partial(command_seconds, folder)) for _ in range(options.commands)]
    shown = f"{min(commands):.2f} to {max(commands):.2f}; {calm}"
    median = statistics.median(commands)
    _say(f"runner call, whole process, {len(commands)} runs: median {median:.2f} s, {shown}")
    idle = ", ".join(f"{part} {'/'.join(f'{mib:.1f}' for mib in mibs)}" for part, mibs in memory.items())
    _say(f"unique memory (USS), idle, MiB: {idle}")
    _say(f"load average at the end: {_load_average()}")
    _say("\n".join(str(target) for target in _targets(pairs, commands, memory)))


def _options() -> argparse.Namespace:
    about = "Compare runner serve with plain FastMCP."
    parser = argparse.ArgumentParser(prog="scripts/bench", description=about)
    parser.add_argument("--quick", action="store_true", help="few calls: to see that it works")
    parser.add_argument("--contract", action="store_true", help="only what the contract costs")
    parser.add_argument("--only", choices=RATIO_LIMITS, help="one transport")
    parser.add_argument("--calls", type=int, default=60, help="calls in a block (60)")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each server (5)")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="to wait for calm (60)"
    )
    options = parser.parse_args()
    options.commands = 5
    options.only = [options.only] if options.only else list(RATIO_LIMITS)
    if options.quick:
        options.calls, options.rounds, options.commands, options.patience = 20, 2, 2, 0.0
    return options


def _compare(
    transport: Transport, folder: Path, *, calls: int, rounds: int, patience_s: float
) -> tuple[list[Pair], dict[str, list[float]]]:
    """Measure every tool under every load over one transport; return that, and the runner's memory."""
    pairs = [Pair(transport=transport, load=load, tool=tool) for load in LOADS for tool in TOOLS]
    with _both(transport, folder) as (plain, runner):
        calm = Calm(patience_s)
        for tool, arguments in TOOLS.items():
            for server in (plain, runner):
                run_block(server, tool, arguments, calls=WARM_UP_CALLS, load=LOADS[0])
        for _ in range(rounds):
            for pair in pairs:
                blocks = calm.measure(partial(_side_by_side, pair, plain, runner, calls))
                pair.plain.append(blocks[0])
                pair.runner.append(blocks[1])
        time.sleep(SETTLE_S)
        _say(f"{transport}: beside its blocks, {calm}")
        return pairs, memory_mib(runner.process.pid)


def _side_by_side(pair: Pair, plain: Server, runner: Server, calls: int) -> tuple[Block, Block]:
    blocks = []
    for server in (plain, runner):
        # The other server's pool refills meanwhile, which is work of its own block.
        time.sleep(SETTLE_S)
        blocks.append(run_block(server, pair.tool, TOOLS[pair.tool], calls=calls, load=pair.load))
    return blocks[0], blocks[1]


@contextlib.contextmanager
def _both(transport: Transport, folder: Path) -> Iterator[tuple[Server, Server]]:
    with serving("plain", transport, folder) as plain, serving("runner", transport, folder) as runner:
        yield plain, runner


def _targets(pairs: list[Pair], commands: list[float], memory: dict[str, list[float]]) -> Iterator[Target]:
    for pair in pairs:
        if pair.load.think_s:
            what = f"{pair.transport}, {pair.load.name}, {pair.tool}, to plain FastMCP"
            limit = RATIO_LIMITS[pair.transport]
            yield Target(what=what, limit=limit, measured=pair.ratio, unit=" times")
    seconds = statistics.median(commands)
    yield Target(
        what="runner call of hello, whole process", limit=COMMAND_LIMIT_S, measured=seconds, unit=" s"
    )
    largest = max(memory["worker"])
    yield Target(
        what="unique memory of an idle worker", limit=WORKER_LIMIT_MIB, measured=largest, unit=" MiB"
    )


def _machine() -> str:
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    }
    processor = ", ".join(sorted(models)) or platform.machine()
    return (
        f"{processor}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}; load average at the start: {_load_average()}"
    )


def _load_average() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
