"""What users cost who are there at once: each has a zygote of their own, and parked workers."""

import json
import random
import statistics
import time
from pathlib import Path

import psutil

from benchmarks.curves.curve import Curve, Panel
from benchmarks.figures import percentile
from benchmarks.processes import tree_mib
from benchmarks.rounds import progress
from benchmarks.servers import Server, serving
from benchmarks.wire import HttpConnection, call_message

__all__ = ["measure"]

SIZES = (1, 10, 100, 1000)
_CALLS = 150
_THINK_S = 0.012
# Below this share of free memory no further user comes: other work on the machine needs it too.
_FREE_SHARE = 0.2
_TOOL = "echo_home"


def measure(folder: Path, seconds: float) -> Curve:
    """Let ever more users call, each for the first time and then again, and look at the processes.

    Args:
        folder: Where the runner keeps its files.
        seconds: After which no further user comes.
    """
    latency = Panel(over="users", shows="milliseconds")
    memory = Panel(over="users", shows="MiB of all processes")
    curve = Curve(
        key="users",
        title="Users",
        about=(
            f"`{_TOOL}` over HTTP, one call at a time with 12 ms of thought; each user comes with a token. "
            "*First* is the call with which a user comes, *again* is any user's next one."
        ),
        headings=(
            "users",
            "first call ms",
            "p99",
            "again ms",
            "p99",
            "processes",
            "MiB in all",
            "MiB a user",
        ),
        panels=(latency, memory),
    )
    tokens = {f"token-of-user-{number:05}": f"user-{number}" for number in range(max(SIZES))}
    written = folder / "tokens.json"
    written.write_text(json.dumps(tokens))
    written.chmod(0o600)
    settings = {"RUNNER_USER": "", "RUNNER_AUTH__KIND": "static", "RUNNER_AUTH__TOKENS_FILE": str(written)}
    until = time.monotonic() + seconds
    with serving("runner", "http", folder, settings=settings) as server:
        empty, _ = tree_mib(server.process.pid)
        there: list[str] = []
        for size in SIZES:
            progress(f"users: {size}")
            first = _come(server, [*tokens][len(there) : size], there, until)
            if not first:
                break
            drawn = random.Random(size)  # noqa: S311 - which user asks next is no secret
            again = [_call(server, drawn.choice(there)) for _ in range(_CALLS)]
            mib, processes = tree_mib(server.process.pid)
            reached = len(there)
            curve.rows.append(_row(reached, first, again, processes, mib, (mib - empty) / reached))
            curve.facts.append(
                {"users": reached, "first_s": first, "again_s": again, "mib": mib, "processes": processes}
            )
            latency.add("first call, median", reached, 1000 * statistics.median(first))
            latency.add("again, median", reached, 1000 * statistics.median(again))
            latency.add("again, p99", reached, 1000 * percentile(again, 0.99))
            memory.add("all processes", reached, mib)
            if reached < size:
                progress(f"users: no more than {reached}, for want of time or memory")
                break
    return curve


def _come(server: Server, tokens: list[str], there: list[str], until: float) -> list[float]:
    """Make the first call of each user, while there is time and memory; return how long each took."""
    took = []
    for token in tokens:
        free = psutil.virtual_memory()
        if time.monotonic() > until or free.available < _FREE_SHARE * free.total:
            break
        took.append(_call(server, token))
        there.append(token)
    return took


def _call(server: Server, token: str) -> float:
    """Make one call of a user on a connection of its own; return its seconds without the connecting."""
    connection = HttpConnection(server.port, token)
    try:
        # The tool's `username` comes from the token.
        data = connection.frame(call_message(1, _TOOL, {"text": "hello"}), _TOOL)
        begun = time.perf_counter()
        connection.send(data)
        while not (answers := connection.receive()):
            pass
        took = time.perf_counter() - begun
    finally:
        connection.close()
    answer = json.loads(answers[0])
    if "result" not in answer or answer["result"].get("isError"):
        raise RuntimeError(f"a call of {_TOOL} failed: {answers[0][:1000]!r}")
    time.sleep(_THINK_S)
    return took


def _row(
    users: int, first: list[float], again: list[float], processes: int, mib: float, each: float
) -> tuple[str, ...]:
    times = [
        f"{1000 * value:.1f}"
        for seconds in (first, again)
        for value in (statistics.median(seconds), percentile(seconds, 0.99))
    ]
    return str(users), *times, str(processes), f"{mib:.0f}", f"{each:.1f}"
