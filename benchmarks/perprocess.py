"""Our call beside one process for each call: bare, in bubblewrap, in sandlock, in sandbox-runtime."""

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.blocks import run_block
from benchmarks.calm import Calm
from benchmarks.figures import TIMES, Target, table
from benchmarks.oneshot import FUNCTIONS, WAYS, Function, Way, ways
from benchmarks.report import Section
from benchmarks.rounds import progress, rounds
from benchmarks.served import STOCKED
from benchmarks.servers import PANDAS_TOOLS, Server, serving

__all__ = ["compare"]

_LIMIT = 0.05
_CALLS = 20
_WARM_UP_CALLS = 20
_HEADINGS = ("what", "how", "calls", "median ms", "(smallest to largest)", "our call to it")
# What of ours stands beside a function: the same one, served.
_OURS = {function.name: "echo_async" for function in FUNCTIONS} | {FUNCTIONS[2].name: "totals"}


@dataclass(slots=True, kw_only=True)
class _Taken:
    """Seconds of each way by its name, and of our call, for one function; or why a way gave none."""

    ours: list[float] = field(default_factory=list)
    ways: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def compare(folder: Path, *, most: int, seconds: float, patience_s: float) -> Section:
    """Measure every function in every way, in turns with our warm call over HTTP.

    Args:
        folder: Where the server keeps its files; the one folder that a function may write.
        most: Rounds.
        seconds: After which no further round begins.
        patience_s: How long to wait for calm, in all.
    """
    taken = {function.name: _Taken() for function in FUNCTIONS}
    calm = Calm(patience_s)
    with ExitStack() as stack:
        progress("installing what is compared, starting the servers")
        found = stack.enter_context(ways(folder))
        server = stack.enter_context(serving("runner", "http", folder))
        pandas = stack.enter_context(serving("runner", "http", folder, tools=PANDAS_TOOLS))
        servers = {"echo_async": server, "totals": pandas}
        for tool, asked in servers.items():
            _ask(asked, tool, _WARM_UP_CALLS)
        for _ in rounds("one process for each call", most, seconds):
            for function in FUNCTIONS:
                tool = _OURS[function.name]
                calm.measure(partial(_round, function, servers[tool], tool, found, taken[function.name]))
    rows = [row for function in FUNCTIONS for row in _rows(function, taken[function.name])]
    return Section(
        key="perprocess",
        title="One process for each call",
        text=f"{table(_HEADINGS, rows)}\n\nBeside them {calm}.",
        facts={name: _facts(one) for name, one in taken.items()},
        targets=[
            _target(function, way, taken[function.name])
            for function in FUNCTIONS[:2]
            for way in WAYS
            if way.startswith(("bubblewrap", "sandbox-runtime"))
        ],
    )


def _round(function: Function, server: Server, tool: str, found: dict[str, Way | str], taken: _Taken) -> None:
    taken.ours += _ask(server, tool, _CALLS)
    for name, way in found.items():
        if isinstance(way, Way):
            taken.ways.setdefault(name, []).append(way.seconds(function))
        else:
            taken.reasons[name] = way


def _ask(server: Server, tool: str, calls: int) -> list[float]:
    return run_block(server, tool, {"text": "hello"}, calls=calls, load=STOCKED).latencies_s


def _rows(function: Function, taken: _Taken) -> list[tuple[str, ...]]:
    rows = [_row(function, f"runner over HTTP, `{_OURS[function.name]}`", taken.ours, "")]
    for name in WAYS:
        if name in taken.reasons:
            rows.append((function.name, f"{name}; not here: {taken.reasons[name]}", "-", "-", "-", "-"))
        else:
            rows.append(_row(function, name, taken.ways[name], f"{_ratio(taken, name):.3f}"))
    return rows


def _row(function: Function, name: str, seconds: list[float], ratio: str) -> tuple[str, ...]:
    span = f"{1000 * min(seconds):.1f} to {1000 * max(seconds):.1f}"
    return function.name, name, str(len(seconds)), f"{1000 * statistics.median(seconds):.1f}", span, ratio


def _ratio(taken: _Taken, way: str) -> float:
    return statistics.median(taken.ours) / statistics.median(taken.ways[way])


def _target(function: Function, way: str, taken: _Taken) -> Target:
    what = f"our median call, to {function.name}, {way}"
    measured = None if way in taken.reasons else _ratio(taken, way)
    return Target(what=what, limit=_LIMIT, measured=measured, unit=TIMES, reason=taken.reasons.get(way, ""))


def _facts(taken: _Taken) -> dict[str, Any]:
    medians = {name: statistics.median(seconds) for name, seconds in taken.ways.items()}
    return {"ours_s": taken.ours, "ways_s": taken.ways, "medians_s": medians, "not_here": taken.reasons}
