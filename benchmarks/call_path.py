"""The path of a call: the files and functions of ours that one warm call enters in the host.

`sys.setprofile` records what the server's event loop enters while ten calls are made, several times. A
function counts if each of the calls entered it: timers of the server, workers and threads do not.

usage: scripts/bench --path [--list | --json] [--eras ERA...] [--transports NAME...] [--tool NAME]
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from benchmarks.figures import table
from benchmarks.servers import ROOT, USER, Transport, serving
from benchmarks.wire import Connection

__all__ = ["main"]

_WINDOWS = 7
_CALLS = 10
_WARM_UP_CALLS = 30
# What a server does after its answers is over, and idle.
_PAUSE_S = 0.4
_BEGIN, _END = signal.SIGUSR1, signal.SIGUSR2
_FOLLOW = "--follow"
_ARGUMENTS = {"echo_async": {"text": "hello"}, "echo_home": {"text": "hello", "username": USER}}
_HEADINGS = ("transport", "era", "files", "functions", "calls of them", "calls of libraries")
Entry = tuple[str, str]


def main() -> None:
    """Measure, and print the table."""
    options = _options()
    rows: list[tuple[str, ...]] = []
    for transport in options.transports:
        for era in options.eras:
            entered = _measured(transport, era, options.tool)
            ours = {entry: times for entry, times in entered.items() if _is_ours(entry[0])}
            files = {file for file, _ in ours}
            calls, all_calls = sum(ours.values()) / _CALLS, sum(entered.values()) / _CALLS
            figures = (len(files), len(ours), round(calls), round(all_calls - calls))
            rows.append((transport, era, *map(str, figures)))
            if options.list:
                _list(ours)
    if options.json:
        keys = ("files", "functions", "calls", "library_calls")
        sys.stdout.write(json.dumps(dict(zip(keys, map(int, rows[-1][2:]), strict=True))) + "\n")
    else:
        sys.stdout.write(f"{table(_HEADINGS, rows)}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench --path", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name every function, by file")
    parser.add_argument("--json", action="store_true", help="print the figures of the last row as JSON")
    parser.add_argument("--eras", nargs="+", default=["2025-11-25", "2026-07-28"])
    parser.add_argument("--transports", nargs="+", default=["http", "stdio"], choices=("http", "stdio"))
    parser.add_argument("--tool", default="echo_async", choices=tuple(_ARGUMENTS))
    return parser.parse_args()


def _measured(transport: Transport, era: str, tool: str) -> dict[Entry, int]:
    """Return how often each function that every call entered was entered by one window of calls."""
    windows: list[dict[Entry, int]] = []
    with tempfile.TemporaryDirectory(prefix="toolcell-path-") as folder:
        result = Path(folder) / "entered.json"
        program = ("-m", "benchmarks.call_path", _FOLLOW, str(result))
        with serving("runner", transport, Path(folder), program=program, version=era) as server:
            (connection,) = server.connect(1)
            _call(connection, tool, _WARM_UP_CALLS)
            for _ in range(_WINDOWS):
                time.sleep(_PAUSE_S)
                server.process.send_signal(_BEGIN)
                _call(connection, tool, _CALLS)
                server.process.send_signal(_END)
                windows.append(_written(result))
    fewest = {entry: min(window.get(entry, 0) for window in windows) for entry in windows[0]}
    return {entry: times for entry, times in fewest.items() if times >= _CALLS}


def _is_ours(file: str) -> bool:
    return file.startswith((f"{ROOT}/runner/", f"{ROOT}/sandbox/"))


def _written(result: Path) -> dict[Entry, int]:
    deadline = time.monotonic() + 30
    while not result.exists():
        if time.monotonic() > deadline:
            raise RuntimeError("the server did not say what it entered")
        time.sleep(0.01)
    found = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    return {(file, name): times for file, name, times in found}


def _call(connection: Connection, tool: str, times: int) -> None:
    for number in range(1, times + 1):
        connection.send(connection.frame(connection.call(number, tool, _ARGUMENTS[tool]), tool))
        while not (answers := connection.receive()):
            pass
        if b'"result"' not in answers[-1] or b'"isError":true' in answers[-1]:
            raise RuntimeError(f"a call failed: {answers[-1]!r}")


def _list(ours: dict[Entry, int]) -> None:
    for file in sorted({file for file, _ in ours}):
        names = sorted(name for other, name in ours if other == file)
        sys.stdout.write(f"{Path(file).relative_to(ROOT)} ({len(names)}): {', '.join(names)}\n")


def _follow(result: Path) -> None:
    """Run the command line; between two signals, count the functions that its main thread enters."""
    entered: Counter[Entry] = Counter()

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        # A comprehension is a frame of its own before Python 3.12, and a coroutine is entered at each turn.
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            entered[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    def begin(_number: int, _frame: FrameType | None) -> None:
        entered.clear()
        sys.setprofile(enter)

    def end(_number: int, _frame: FrameType | None) -> None:
        sys.setprofile(None)
        here = {entry: times for entry, times in entered.items() if entry[0] != __file__}
        lines = [(*entry, times) for entry, times in here.items() if "/asyncio/" not in entry[0]]
        temporary = result.with_suffix(".part")
        temporary.write_text(json.dumps(lines), encoding="utf-8")
        temporary.rename(result)

    signal.signal(_BEGIN, begin)
    signal.signal(_END, end)
    from runner.__main__ import main as run  # noqa: PLC0415 -- only here: what is measured is another process

    run()


if __name__ == "__main__":
    if sys.argv[1:2] == [_FOLLOW]:
        file = Path(sys.argv[2])
        del sys.argv[1:3]
        _follow(file)
    else:
        main()
