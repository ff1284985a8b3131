"""What the size of a zygote costs each fork: memory in one block, and in very many Python objects."""

import statistics
import time
from pathlib import Path

import psutil

from benchmarks.blocks import Load, run_block
from benchmarks.curves.curve import Curve, Panel
from benchmarks.processes import memory_mib
from benchmarks.rounds import progress, rounds
from benchmarks.series import OURS, Series
from benchmarks.served import SETTLE_S, STOCKED
from benchmarks.servers import Server, serving

__all__ = ["measure"]

# What is added to the 80 MiB that a zygote has of itself.
BALLAST_MIB = (0, 220, 944)
_CALLS = 30
_ROUNDS = 3
_SATURATED = Load(name="saturated, 1 client")
_ARGUMENTS = {"text": "hello"}
# A short string and its place in a list.
_OBJECT_BYTES = 64
_FILES = {
    "one block": "BALLAST = b'x' * {bytes}",
    "objects": f"BALLAST = [str(number) for number in range({{bytes}} // {_OBJECT_BYTES})]",
}
_TOOLS = '''from fastmcp import FastMCP

mcp = FastMCP("heavy")
{ballast}


@mcp.tool
async def echo_async(text: str) -> str:
    """Return the text."""
    return text
'''
# Fifteen million strings take a while.
_SETTINGS = {"RUNNER_LOAD_TIMEOUT_S": "120"}
_MIB = 1 << 20


def measure(folder: Path, seconds: float) -> Curve:
    """Serve files that hold ever more memory, and call a tool that does not touch it.

    Args:
        folder: Where the files and the runner's own are kept.
        seconds: For all sizes together; when a size has had its part, no further round of it begins.
    """
    latency = Panel(over="MiB of a zygote", shows="milliseconds, median")
    memory = Panel(over="MiB of a zygote", shows="MiB a worker has alone")
    curve = Curve(
        key="zygotes",
        title="Size of a zygote",
        about=(
            "A file that takes memory when it is imported, as one block of bytes or as very many strings; "
            "`echo_async`, which touches none of it, over HTTP."
        ),
        headings=(
            *("memory is", "zygote RSS MiB", "starts s", "stocked ms", "p95"),
            *("saturated, 1 client, ms", "calls/s", "zygote alone MiB", "worker alone MiB"),
        ),
        panels=(latency, memory),
    )
    steps = [(kind, mib) for kind in _FILES for mib in BALLAST_MIB if mib or kind == "one block"]
    for kind, mib in steps:
        progress(f"zygotes: {mib} MiB more as {kind}")
        tools = folder / f"heavy_{kind.replace(' ', '_')}_{mib}.py"
        tools.write_text(_TOOLS.format(ballast=_FILES[kind].format(bytes=mib * _MIB)))
        begun = time.perf_counter()
        with serving("runner", "http", folder, tools=tools, settings=_SETTINGS) as server:
            started_s = time.perf_counter() - begun
            stocked, saturated = _asked(server, f"{mib} MiB as {kind}", seconds / len(steps))
            time.sleep(SETTLE_S)
            alone = memory_mib(server.process.pid)
            whole = _zygote_mib(server.process.pid)
        own = [statistics.median(alone[part]) for part in ("zygote", "worker")]
        times = [1000 * stocked.latency_s(OURS), 1000 * saturated.latency_s(OURS)]
        curve.rows.append(
            (
                *(kind if mib else "none", f"{whole:.0f}", f"{started_s:.2f}", f"{times[0]:.2f}"),
                *(f"{1000 * stocked.latency_s(OURS, 0.95):.2f}", f"{times[1]:.2f}"),
                *(f"{saturated.rate(OURS):.0f}", f"{own[0]:.1f}", f"{own[1]:.1f}"),
            )
        )
        curve.facts.append(
            {
                "ballast_mib": mib,
                "kind": kind,
                "zygote_rss_mib": whole,
                "starts_s": started_s,
                "stocked_ms": times[0],
                "saturated_ms": times[1],
                "memory_mib": alone,
            }
        )
        # A zygote without ballast begins both lines.
        for line in (kind,) if mib else _FILES:
            latency.add(f"stocked, {line}", whole, times[0])
            latency.add(f"saturated, {line}", whole, times[1])
            memory.add(line, whole, own[1])
    return curve


def _asked(server: Server, what: str, seconds: float) -> tuple[Series, Series]:
    series = tuple(Series(transport="http", load=load, tool="echo_async") for load in (STOCKED, _SATURATED))
    for one in series:
        run_block(server, one.tool, _ARGUMENTS, calls=_CALLS, load=one.load)
    for _ in rounds(what, _ROUNDS, seconds):
        for one in series:
            time.sleep(SETTLE_S)
            one.add(OURS, run_block(server, one.tool, _ARGUMENTS, calls=_CALLS, load=one.load))
    return series[0], series[1]


def _zygote_mib(host: int) -> float:
    """Return the resident memory of the largest zygote, with what it shares."""
    forkservers = psutil.Process(host).children()
    zygotes = [child for forkserver in forkservers for child in forkserver.children()]
    return float(max(zygote.memory_info().rss for zygote in zygotes) / _MIB)
