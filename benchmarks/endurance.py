"""What very many calls leave in the host: memory after all of them beside that after the first hundredth."""

import time
from pathlib import Path

from benchmarks.blocks import Load, run_block
from benchmarks.figures import TIMES, Target, table
from benchmarks.processes import descriptors, host_mib
from benchmarks.report import Section
from benchmarks.rounds import progress
from benchmarks.servers import USER, Server, serving

__all__ = ["measure"]

_CROWD = Load(name="8 clients", in_flight=8)
_GROWTH_LIMIT = 1.05
_LEAST_WARM_UP = 200
_STEPS = 10
_SETTLE_S = 2.0
_HEADINGS = ("calls", "host USS MiB", "descriptors of host and forkserver")


def measure(folder: Path, *, calls: int) -> Section:
    """Make calls of a tool without a home and of one with, eight at a time over HTTP, and look at the host.

    Args:
        folder: Where the server keeps its files.
        calls: How many. The end is compared with the first hundredth, or the first 200 if that is more.
    """
    first = min(calls, max(calls // 100, _LEAST_WARM_UP))
    rows: list[tuple[int, float, int]] = []
    with serving("runner", "http", folder) as server:
        for upto in [first, *(first + (calls - first) * step // _STEPS for step in range(1, _STEPS + 1))]:
            progress(f"endurance: {upto} of {calls} calls")
            _ask(server, upto - (rows[-1][0] if rows else 0))
            # Workers that served are gone by then, and the pool is full again.
            time.sleep(_SETTLE_S)
            rows.append((upto, host_mib(server.process.pid), descriptors(server.process.pid)))
    growth, more = rows[-1][1] / rows[0][1], rows[-1][2] - rows[0][2]
    return Section(
        key="endurance",
        title=f"The host after {calls:,} calls",
        text=table(_HEADINGS, [(f"{done:,}", f"{mib:.1f}", str(open_)) for done, mib, open_ in rows]),
        facts=[{"calls": done, "uss_mib": mib, "descriptors": open_} for done, mib, open_ in rows],
        targets=[
            Target(
                what=f"host memory after {calls:,} calls, to after {first:,}",
                limit=_GROWTH_LIMIT,
                measured=growth,
                unit=TIMES,
            ),
            Target(
                what=f"descriptors after {calls:,} calls, more than after {first:,}",
                limit=0,
                measured=more,
                unit="",
            ),
        ],
    )


def _ask(server: Server, calls: int) -> None:
    half = calls // 2
    for tool, arguments, share in (
        ("echo_async", {"text": "hello"}, calls - half),
        ("echo_home", {"text": "hello", "username": USER}, half),
    ):
        if share:
            run_block(server, tool, arguments, calls=share, load=_CROWD)
