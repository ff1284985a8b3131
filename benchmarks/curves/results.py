"""What the size of a result costs that is a file: handed on by reference, and inline as base64."""

import json
import statistics
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks.curves.curve import Curve, Panel
from benchmarks.rounds import rounds
from benchmarks.servers import USER, Kind, Server, serving
from benchmarks.wire import HttpConnection, call_message

__all__ = ["measure"]

KIB_SIZES = (1, 32, 1024, 10 * 1024, 100 * 1024, 300 * 1024)
_ROUNDS = 5
_THINK_S = 0.05
_TOOLS = Path(__file__).with_name("results_tools.py")
_PLAIN = "plain FastMCP, path only"
_REFERENCE = "runner, by reference"
_INLINE = "runner, inline if it fits"
_SIDES: dict[str, tuple[Kind, dict[str, str]]] = {
    _PLAIN: ("plain", {}),
    _REFERENCE: ("runner", {"RUNNER_ARTIFACT_DELIVERY": "reference"}),
    _INLINE: ("runner", {"RUNNER_ARTIFACT_DELIVERY": "inline"}),
}
_PARSED_BYTES = 1 << 20


def measure(folder: Path, seconds: float) -> Curve:
    """Call a tool that writes a file, ever larger, in turns on all sides.

    Args:
        folder: Where the files are kept; they need up to 5 GiB.
        seconds: After which no further round begins.
    """
    whole = Panel(over="KiB of the file", shows="milliseconds, median")
    curve = Curve(
        key="results",
        title="Results",
        about=(
            "A tool writes a file and returns it, over HTTP. Plain FastMCP gets the path and leaves the file "
            "where it is; the runner measures, digests and stores it, and hands on a reference, or all of it "
            "as base64 if that fits into a message of 900 kB."
        ),
        headings=(
            *("KiB", "plain, path only, ms", "by reference ms", "adds ms", "GB/s of that"),
            *("inline if it fits ms", "answer KiB"),
        ),
        panels=(whole,),
    )
    taken: dict[int, dict[str, list[float]]] = {kib: {side: [] for side in _SIDES} for kib in KIB_SIZES}
    answers: dict[int, int] = {}
    with ExitStack() as stack:
        servers = {side: stack.enter_context(_served(side, folder)) for side in _SIDES}
        for server in servers.values():
            _call(server, 1)
        for _ in rounds("results", _ROUNDS, seconds):
            for kib, sides in taken.items():
                for side, server in servers.items():
                    took, answer_bytes = _call(server, kib)
                    sides[side].append(took)
                    if side == _INLINE:
                        answers[kib] = answer_bytes
    for kib, sides in taken.items():
        medians = {side: 1000 * statistics.median(seconds_) for side, seconds_ in sides.items()}
        curve.rows.append(_row(kib, medians, answers[kib]))
        curve.facts.append({"kib": kib, "seconds": sides, "inline_answer_bytes": answers[kib]})
        for side, ms in medians.items():
            whole.add(side, kib, ms)
    return curve


def _served(side: str, folder: Path) -> AbstractContextManager[Server]:
    kind, settings = _SIDES[side]
    own = folder / side.replace(" ", "-").replace(",", "")
    own.mkdir()
    # The tool writes into its home; plain FastMCP gives it none but this.
    home = {"HOME": str(own)} if kind == "plain" else {}
    return serving(kind, "http", own, tools=_TOOLS, settings={**settings, **home})


def _call(server: Server, kib: int) -> tuple[float, int]:
    """Return the seconds of one call, and the bytes of its answer."""
    connection = HttpConnection(server.port)
    try:
        data = connection.frame(call_message(1, "make", {"username": USER, "kib": kib}), "make")
        begun = time.perf_counter()
        connection.send(data)
        while not (answers := connection.receive()):
            pass
        took = time.perf_counter() - begun
    finally:
        connection.close()
    _look(answers[0])
    time.sleep(_THINK_S)
    return took, len(answers[0])


def _look(answer: bytes) -> None:
    # Reading hundreds of megabytes as JSON would take longer than the call; an error is short.
    if len(answer) <= _PARSED_BYTES:
        said = json.loads(answer)
        if "result" not in said or said["result"].get("isError"):
            raise RuntimeError(f"a call of make failed: {answer[:1000]!r}")


def _row(kib: int, ms: dict[str, float], answer_bytes: int) -> tuple[str, ...]:
    added = ms[_REFERENCE] - ms[_PLAIN]
    rate = kib * 1024 / 1e6 / added if added > 0 else 0.0
    return (
        *(f"{kib:,}", f"{ms[_PLAIN]:.1f}", f"{ms[_REFERENCE]:.1f}", f"{added:.1f}", f"{rate:.2f}"),
        *(f"{ms[_INLINE]:.1f}", f"{answer_bytes / 1024:,.0f}"),
    )
