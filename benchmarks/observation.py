"""What an operator's view costs: a warm call with audit log, metrics, spans, and all three, in turns.

The base is a server without any, beside which the others are asked in the same run. Spans go to a collector
that takes them and keeps nothing; once all of them, and once of a tenth of the calls. Processor time is the
host's own, that of sending included.

usage: scripts/bench --observation [--calls N] [--rounds N]
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.blocks import Block, Load, run_block
from benchmarks.calm import Calm
from benchmarks.figures import TIMES, Target, table
from benchmarks.processes import processor_s
from benchmarks.servers import USER, Server, serving

__all__ = ["main"]

_LIMIT = 1.03
_STOCKED = Load(name="stocked", think_s=0.012)
_TOOLS = {"echo_async": {"text": "hello"}, "echo_home": {"text": "hello", "username": USER}}
_HEADINGS = (
    *("tool", "with", "calls", "median ms", "times as long", "(rounds)"),
    *("host's processor ms a call", "times as much"),
)
_WARM_UP = 20
_SENDING_S = 1.0
_SENT_SOON = {"OTEL_BSP_SCHEDULE_DELAY": "500"}


def main() -> None:
    """Measure, and print the report."""
    options = _options()
    calm = Calm(options.patience)
    rows: list[tuple[str, ...]] = []
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
        for tool, arguments in _TOOLS.items():
            ask = partial(_round, servers, tool, arguments, options.calls)
            _round(servers, tool, arguments, _WARM_UP)
            rounds = [calm.measure(ask) for _ in range(options.rounds)]
            for kind in servers:
                ratio, row = _figures(tool, kind, rounds)
                rows.append(row)
                if kind.startswith("all"):
                    what = f"{tool} with {kind}, to without"
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
        "nothing": {},
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """A block, and the processor time that the host took for it, in seconds."""

    block: Block
    processor_s: float


_Rounds = Sequence[Mapping[str, _Asked]]


def _round(servers: dict[str, Server], tool: str, arguments: dict[str, str], calls: int) -> dict[str, _Asked]:
    return {kind: _asked(server, tool, arguments, calls) for kind, server in servers.items()}


def _asked(server: Server, tool: str, arguments: dict[str, str], calls: int) -> _Asked:
    begun = processor_s(server.process.pid)
    block = run_block(server, tool, arguments, calls=calls, load=_STOCKED)
    # What waits to be sent is part of the price.
    time.sleep(_SENDING_S)
    return _Asked(block, processor_s(server.process.pid) - begun)


def _figures(tool: str, kind: str, rounds: _Rounds) -> tuple[float, tuple[str, ...]]:
    mine = [1000 * took for one in rounds for took in one[kind].block.latencies_s]
    base = [1000 * took for one in rounds for took in one["nothing"].block.latencies_s]
    ratio = statistics.median(mine) / statistics.median(base)
    by_round = [
        statistics.median(one[kind].block.latencies_s) / statistics.median(one["nothing"].block.latencies_s)
        for one in rounds
    ]
    calls = len(mine) // len(rounds)
    work = 1000 * statistics.median(one[kind].processor_s for one in rounds) / calls
    base_work = 1000 * statistics.median(one["nothing"].processor_s for one in rounds) / calls
    row = (
        tool,
        kind,
        str(len(mine)),
        f"{statistics.median(mine):.2f}",
        f"{ratio:.3f}",
        f"{min(by_round):.3f} to {max(by_round):.3f}",
        f"{work:.2f}",
        f"{work / base_work:.3f}",
    )
    return ratio, row


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench --observation", description=__doc__)
    parser.add_argument("--calls", type=int, default=60, help="calls of a block (60)")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each (7)")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for calm in all (120)")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
