"""What an operator's view costs: a warm call with audit log, metrics, spans, and all three, in turns.

The base is two servers without any, beside which the others are asked in the same run: two that are equal
differ, too, by what is said of the second one. Spans go to a collector that takes them and keeps nothing;
once all of them, and once of a tenth of the calls. Processor time is the host's own, without that of sending.

usage: scripts/bench --observation [--turns N]
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.blocks import Load, run_block
from benchmarks.calm import Calm
from benchmarks.figures import TIMES, Target, table
from benchmarks.processes import processor_s
from benchmarks.servers import USER, Server, serving

__all__ = ["main"]

_LIMIT = 1.03
_BASE, _CONTROL = "nothing", "nothing, once more"
_LOADS = (Load(name="stocked", think_s=0.012), Load(name="saturated, 1 client"))
_TOOLS = {"echo_async": {"text": "hello"}, "echo_home": {"text": "hello", "username": USER}}
_HEADINGS = (
    *("tool", "load", "with", "calls", "median ms", "times as long", "(parts)"),
    *("host's processor ms a call", "times as much"),
)
# Calls that a server is asked before the next one's turn.
_CALLS_OF_TURN = 5
_WARM_UP = 4
# Without pauses, so many times the turns take as long.
_MORE_AT_ONCE = 5
_PARTS = 5
_SENDING_S = 1.0
_SENT_SOON = {"OTEL_BSP_SCHEDULE_DELAY": "500"}


def main() -> None:
    """Measure, and print the report."""
    options = _options()
    calm = Calm(options.patience)
    rows: list[list[str]] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as name, ExitStack() as stack:
        collector = stack.enter_context(_collecting())
        servers: dict[str, Server] = {}
        for kind, settings in _kinds(Path(name), collector).items():
            own = Path(name, kind.replace(" ", "-"))
            own.mkdir()
            servers[kind] = stack.enter_context(
                serving("runner", "http", own, settings={**settings, **_SENT_SOON})
            )
        for load, (tool, arguments) in itertools.product(_LOADS, _TOOLS.items()):
            turns = options.turns if load.think_s else options.turns * _MORE_AT_ONCE
            ask = partial(_asked_in_turns, servers, tool, arguments, load, turns)
            _asked_in_turns(servers, tool, arguments, load, _WARM_UP)
            asked = [calm.measure(ask) for _ in range(_PARTS)]
            for kind in servers:
                ratio, row = _row(tool, load, kind, asked)
                rows.append(row)
                if kind.startswith("all"):
                    what = f"{tool}, {load.name}, with {kind}, to without"
                    targets.append(Target(what=what, limit=_LIMIT, measured=ratio, unit=TIMES))
    _say(table(_HEADINGS, rows))
    _say(f"{calm}")
    for target in targets:
        _say(str(target))


def _kinds(folder: Path, collector: str) -> Mapping[str, dict[str, str]]:
    """Return what is asked, the base first, each with its settings."""
    metrics = {"RUNNER_METRICS_ADDRESS": "127.0.0.1:0"}
    spans = {"RUNNER_SPANS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    tenth = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
    return {
        _BASE: {},
        _CONTROL: {},
        "audit log": {"RUNNER_AUDIT_DIR": str(folder / "audit")},
        "metrics": metrics,
        "spans": spans,
        "spans of a tenth": {**spans, **tenth},
        "all three": {"RUNNER_AUDIT_DIR": str(folder / "audit-of-all"), **metrics, **spans},
        "all, spans of a tenth": {
            "RUNNER_AUDIT_DIR": str(folder / "audit-of-most"),
            **metrics,
            **spans,
            **tenth,
        },
    }


@contextmanager
def _collecting() -> Iterator[str]:
    """Take what is sent, and keep none of it; yield the address."""

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass(slots=True)
class _Asked:
    """What one server was asked under one load.

    Attributes:
        latencies_s: Of its calls, in seconds.
        processor_s: What the host took for them, in seconds.
    """

    latencies_s: list[float] = field(default_factory=list)
    processor_s: float = 0.0


def _asked_in_turns(
    servers: Mapping[str, Server], tool: str, arguments: Mapping[str, str], load: Load, turns: int
) -> Mapping[str, _Asked]:
    """Ask each server a few calls, and all of them again; a machine's speed changes from second to second."""
    asked = {kind: _Asked() for kind in servers}
    begun = {kind: processor_s(server.process.pid) for kind, server in servers.items()}
    for _ in range(turns):
        for kind, server in servers.items():
            block = run_block(server, tool, arguments, calls=_CALLS_OF_TURN, load=load)
            asked[kind].latencies_s += block.latencies_s
    # What is told once the answers are out is part of the price.
    time.sleep(_SENDING_S)
    for kind, server in servers.items():
        asked[kind].processor_s = processor_s(server.process.pid) - begun[kind]
    return asked


def _row(tool: str, load: Load, kind: str, asked: Sequence[Mapping[str, _Asked]]) -> tuple[float, list[str]]:
    """Return how many times as long a call takes as without anything, and the row that says it."""
    mine, base, control = ([part[which] for part in asked] for which in (kind, _BASE, _CONTROL))
    ratio = 2 * _median_ms(mine) / (_median_ms(base) + _median_ms(control))
    parts = [
        2 * _median_ms([one]) / (_median_ms([other]) + _median_ms([again]))
        for one, other, again in zip(mine, base, control, strict=True)
    ]
    calls = sum(len(part.latencies_s) for part in mine)
    work, *works = (1000 * sum(part.processor_s for part in which) / calls for which in (mine, base, control))
    base_work = sum(works) / len(works)
    return ratio, [
        *(tool, load.name, kind, str(calls), f"{_median_ms(mine):.2f}", f"{ratio:.3f}"),
        *(f"{min(parts):.3f} to {max(parts):.3f}", f"{work:.2f}", f"{work / base_work:.3f}"),
    ]


def _median_ms(parts: Sequence[_Asked]) -> float:
    return 1000 * statistics.median(took for part in parts for took in part.latencies_s)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench --observation", description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help="turns of each in a part of five (20)")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for calm in all (120)")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
