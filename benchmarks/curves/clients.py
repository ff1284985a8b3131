"""How latency and throughput go with the number of clients that ask at once."""

from pathlib import Path

from benchmarks.blocks import Load, run_block
from benchmarks.curves.curve import Curve, Panel
from benchmarks.rounds import rounds
from benchmarks.series import BASE, OURS, Series
from benchmarks.servers import serving

__all__ = ["measure"]

SIZES = (1, 4, 16, 64, 256)
_ROUNDS = 3
_LEAST_CALLS = 100
_ARGUMENTS = {"text": "hello"}
# So that 256 clients of one user all wait, and none is refused.
_SETTINGS = {
    "RUNNER_MAX_CALLS_PER_USER": "16",
    "RUNNER_MAX_QUEUE": "1000",
    "RUNNER_MAX_QUEUE_PER_USER": "1000",
    "RUNNER_MAX_REQUESTS_PER_USER": "1000",
}


def measure(folder: Path, seconds: float) -> Curve:
    """Ask plain FastMCP and the runner over HTTP, in turns, with ever more clients.

    Args:
        folder: Where the runner keeps its files.
        seconds: After which no further round begins.
    """
    latency = Panel(over="clients at once", shows="milliseconds")
    rate = Panel(over="clients at once", shows="calls a second")
    curve = Curve(
        key="clients",
        title="Clients",
        about=(
            "`echo_async` over HTTP, every client asks again at once. One user; 16 calls run at the same "
            "time, the others wait."
        ),
        headings=(
            *("clients", "plain median ms", "p99", "calls/s"),
            *("runner median ms", "p99", "calls/s", "median to plain", "calls/s to plain"),
        ),
        panels=(latency, rate),
    )
    series = {size: Series(transport="http", load=_load(size), tool="echo_async") for size in SIZES}
    with (
        serving("plain", "http", folder) as plain,
        serving("runner", "http", folder, settings=_SETTINGS) as runner,
    ):
        servers = {BASE: plain, OURS: runner}
        for server in servers.values():
            run_block(server, "echo_async", _ARGUMENTS, calls=50, load=_load(4))
        for _ in rounds("clients", _ROUNDS, seconds):
            for size, one in series.items():
                for side, server in servers.items():
                    calls = max(_LEAST_CALLS, 2 * size)
                    one.add(side, run_block(server, one.tool, _ARGUMENTS, calls=calls, load=one.load))
    for size, one in series.items():
        curve.rows.append(_row(size, one))
        curve.facts.append({"clients": size, **one.facts()})
        for side in (BASE, OURS):
            latency.add(f"{side}, median", size, 1000 * one.latency_s(side))
            latency.add(f"{side}, p99", size, 1000 * one.latency_s(side, 0.99))
            rate.add(side, size, one.rate(side))
    return curve


def _load(clients: int) -> Load:
    return Load(name=f"{clients} clients", in_flight=clients)


def _row(size: int, one: Series) -> tuple[str, ...]:
    toolsets = [
        toolset
        for side in (BASE, OURS)
        for toolset in (
            f"{1000 * one.latency_s(side):.1f}",
            f"{1000 * one.latency_s(side, 0.99):.1f}",
            f"{one.rate(side):.0f}",
        )
    ]
    return str(size), *toolsets, f"{one.ratio():.2f}", f"{one.rate(OURS) / one.rate(BASE):.2f}"
