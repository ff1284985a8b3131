"""What the proxy adds to a call: a stdio server asked directly, and the same one behind `runner proxy`.

Both are asked in turns, one call at a time, over raw lines of JSON, in each era of the protocol. Behind the
proxy the server is confined as well, so the difference holds what confinement costs its system calls.

usage: scripts/bench --proxy [--calls N] [--rounds N]
"""

import argparse
import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.calm import Calm
from benchmarks.figures import Target, table
from benchmarks.servers import ROOT, environment
from benchmarks.wire import StdioConnection, call_message

__all__ = ["main"]

LIMIT_MS = 1.5
_TOOL, _ARGUMENTS = "echo", {"text": "hello"}
_SERVER = Path(__file__).with_name("tools.py")
_PLAIN = "import runpy, sys; runpy.run_path(sys.argv[1])['mcp'].run(transport='stdio', show_banner=False)"
_ANSWER_S = 180.0
_HEADINGS = ("era", "calls", "direct ms", "proxy ms", "adds ms", "(rounds)", "ratio", "p95 ms", "p95 ms")


class _Side:
    """One server, asked over its pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, handshake: bool) -> None:
        self._connection = StdioConnection(process)
        self._handshake = handshake
        self._number = 0
        if handshake:
            about = {"protocolVersion": "2025-11-25", "capabilities": {}}
            self._ask("initialize", {**about, "clientInfo": {"name": "bench", "version": "1"}})
            self._connection.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def call(self) -> float:
        """Return how long one call took, in seconds."""
        if self._handshake:
            return self._ask("tools/call", {"name": _TOOL, "arguments": _ARGUMENTS})
        self._number += 1
        return self._time(call_message(self._number, _TOOL, _ARGUMENTS))

    def _ask(self, method: str, params: dict[str, Any]) -> float:
        self._number += 1
        said = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        return self._time(json.dumps(said).encode())

    def _time(self, message: bytes) -> float:
        data = self._connection.frame(message, _TOOL)
        begun = time.perf_counter()
        self._connection.send(data)
        while True:
            if not select.select([self._connection], [], [], _ANSWER_S)[0]:
                raise ConnectionError(f"no answer within {_ANSWER_S:.0f} s")
            for answer in self._connection.receive():
                took = time.perf_counter() - begun
                said = json.loads(answer)
                if "error" in said or said["result"].get("isError"):
                    raise ConnectionError(f"the call failed: {answer[:500]!r}")
                return took


def main() -> None:
    """Measure, and print the report."""
    options = _options()
    calm = Calm(options.patience)
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    for era, handshake in (("2025-11-25", True), ("2026-07-28", False)):
        with (
            tempfile.TemporaryDirectory() as made,
            _both(Path(made), handshake=handshake) as (direct, behind),
        ):
            rounds = [
                calm.measure(lambda: _round(direct, behind, options.calls)) for _ in range(options.rounds)
            ]
        row, target = _figures(era, rounds)
        rows.append(row)
        targets.append(target)
    _say(table(_HEADINGS, rows))
    _say(f"{calm}")
    for target in targets:
        _say(str(target))


def _round(direct: _Side, behind: _Side, calls: int) -> tuple[list[float], list[float]]:
    """Return the latencies of both, asked in turns so that what else happens meets both alike."""
    pairs = [(direct.call(), behind.call()) for _ in range(calls)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _figures(era: str, rounds: list[tuple[list[float], list[float]]]) -> tuple[tuple[str, ...], Target]:
    direct = [1000 * took for one, _ in rounds for took in one]
    behind = [1000 * took for _, one in rounds for took in one]
    by_round = [1000 * (statistics.median(two) - statistics.median(one)) for one, two in rounds]
    added = statistics.median(behind) - statistics.median(direct)
    row = (
        era,
        str(len(direct)),
        f"{statistics.median(direct):.2f}",
        f"{statistics.median(behind):.2f}",
        f"{added:.2f}",
        f"{min(by_round):.2f} to {max(by_round):.2f}",
        f"{statistics.median(behind) / statistics.median(direct):.2f}",
        f"{statistics.quantiles(direct, n=20)[-1]:.2f}",
        f"{statistics.quantiles(behind, n=20)[-1]:.2f}",
    )
    what = f"what the proxy adds to a stdio server's call at the median, {era}"
    return row, Target(what=what, limit=LIMIT_MS, measured=added, unit=" ms")


@contextmanager
def _both(folder: Path, *, handshake: bool) -> Iterator[tuple[_Side, _Side]]:
    server = [sys.executable, "-c", _PLAIN, str(_SERVER)]
    proxy = [sys.executable, "-m", "runner", "proxy", "--", *server]
    with _running(server, folder) as direct, _running(proxy, folder) as behind:
        sides = _Side(direct, handshake=handshake), _Side(behind, handshake=handshake)
        for side in sides:
            for _warm in range(50):
                side.call()
        yield sides


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    log = folder / f"{len(command)}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env=environment(folder),
        )
    try:
        yield process
    except ConnectionError as error:
        error.add_note(f"The last words of {' '.join(command)}:\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        process.terminate()
        process.communicate()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench --proxy", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--calls", type=int, default=300, help="calls of each side in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for calm")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n\n")


if __name__ == "__main__":
    main()
