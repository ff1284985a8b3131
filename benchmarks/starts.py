"""How soon something can be used: a server's first answer, and the whole of one call from a shell."""

import http.client
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.calm import Calm
from benchmarks.figures import TIMES, Target, table
from benchmarks.report import Section
from benchmarks.rounds import progress, rounds
from benchmarks.servers import ROOT, end_with_parent, environment, free_port, stop
from benchmarks.wire import message

__all__ = ["HELLO", "compare", "done_in"]

HELLO = ("sample_tools/hello.py", "shout", "text=hi")
_FASTMCP = [str(Path(sys.executable).with_name("fastmcp"))]
_RUNNER = [sys.executable, "-m", "runner"]
_SERVE_LIMIT = 1.2
_CALL_LIMIT = 1.3
_START_S = 120.0
_POLL_S = 0.005
_SIDES = ("fastmcp", "runner")
_HEADINGS = (
    "what",
    "runs",
    "fastmcp s",
    "(smallest to largest)",
    "runner s",
    "(smallest to largest)",
    "ratio",
)
_LISTED = "`serve`, until tools are listed"
_CALLED = "`serve`, until the first call is answered"
_COMMAND = "`call`, the whole process"


@dataclass(slots=True)
class _Taken:
    """Seconds of both sides, for one row."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in _SIDES})

    @property
    def ratio(self) -> float:
        return statistics.median(self.seconds["runner"]) / statistics.median(self.seconds["fastmcp"])


def compare(folder: Path, *, most: int, seconds: float, patience_s: float) -> Section:
    """Measure starts in turns: `fastmcp run` and `runner serve`, `fastmcp call` and `runner call`.

    Args:
        folder: Where the runner keeps its files.
        most: Rounds.
        seconds: After which no further round begins.
        patience_s: How long to wait for calm, in all.
    """
    taken = {_LISTED: _Taken(), _CALLED: _Taken(), _COMMAND: _Taken()}
    calm = Calm(patience_s)
    progress("starts: the first of each is not counted")
    _round(folder, {name: _Taken() for name in taken})
    for _ in rounds("starts", most, seconds):
        calm.measure(lambda: _round(folder, taken))
    text = f"{table(_HEADINGS, [_row(name, one) for name, one in taken.items()])}\n\nBeside them {calm}."
    facts = {name: one.seconds for name, one in taken.items()}
    return Section(
        key="starts",
        title="Starts of `sample_tools/hello.py`",
        text=text,
        facts=facts,
        targets=[
            Target(
                what="runner serve until tools are listed, to fastmcp run",
                limit=_SERVE_LIMIT,
                measured=taken[_LISTED].ratio,
                unit=TIMES,
            ),
            Target(
                what="runner call, the whole process, to fastmcp call",
                limit=_CALL_LIMIT,
                measured=taken[_COMMAND].ratio,
                unit=TIMES,
            ),
        ],
    )


def _round(folder: Path, taken: dict[str, _Taken]) -> None:
    for side in _SIDES:
        listed, called = _served(side, folder)
        taken[_LISTED].seconds[side].append(listed)
        taken[_CALLED].seconds[side].append(called)
        taken[_COMMAND].seconds[side].append(_command(side, folder))


def _served(side: str, folder: Path) -> tuple[float, float]:
    """Return the seconds from the start of a server to its first list of tools, and to its first answer."""
    port = free_port()
    serve = {
        "fastmcp": [*_FASTMCP, "run", HELLO[0], "--no-banner", "--transport", "http", "--port", str(port)],
        "runner": [*_RUNNER, "serve", HELLO[0], "--transport", "http", "--port", str(port)],
    }
    log = folder / f"start-{side}.log"
    with log.open("wb") as errors:
        begun = time.perf_counter()
        process = subprocess.Popen(
            serve[side],
            cwd=ROOT,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            preexec_fn=end_with_parent,
        )
    try:
        _asked(process, port, "tools/list", {})
        listed = time.perf_counter() - begun
        answer = _asked(process, port, "tools/call", {"name": "shout", "arguments": {"text": "hi"}})
        called = time.perf_counter() - begun
    except RuntimeError as error:
        error.add_note(log.read_text(errors="replace")[-2000:])
        raise
    finally:
        stop(process)
    if b"HI" not in answer:
        raise RuntimeError(f"the server answered {answer[:500]!r}")
    return listed, called


def _asked(process: "subprocess.Popen[bytes]", port: int, method: str, params: dict[str, Any]) -> bytes:
    """Return the answer to a request, asked until somebody listens."""
    body, headers = message(1, method, params), _headers(method, params)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
        try:
            connection.request("POST", "/mcp", body=body, headers=headers)
            response = connection.getresponse()
            answer = response.read()
        except ConnectionError:
            time.sleep(_POLL_S)
        else:
            if response.status == http.client.OK:
                return answer
            raise RuntimeError(f"{method} was answered with {response.status}: {answer[:500]!r}")
        finally:
            connection.close()
    raise RuntimeError(f"nobody answered {method} on port {port}")


def _headers(method: str, params: dict[str, Any]) -> dict[str, str]:
    named = {"MCP-Name": str(params["name"])} if "name" in params else {}
    return {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "MCP-Method": method,
        **named,
    }


def _command(side: str, folder: Path) -> float:
    """Return the seconds that one call from a shell takes, from exec to exit."""
    program = {"fastmcp": _FASTMCP, "runner": _RUNNER}[side]
    begun = time.perf_counter()
    done = done_in([*program, "call", *HELLO], folder)
    took = time.perf_counter() - begun
    if "HI" not in done.stdout:
        raise RuntimeError(f"{side} call printed {done.stdout[:500]!r}")
    return took


def done_in(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command of either side from the top of the tree.

    Raises:
        RuntimeError: It failed; the message is its own.
    """
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=_START_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def _row(name: str, taken: _Taken) -> tuple[str, ...]:
    toolsets = [
        toolset
        for seconds in (taken.seconds[side] for side in _SIDES)
        for toolset in (f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}")
    ]
    return name, str(len(taken.seconds["runner"])), *toolsets, f"{taken.ratio:.2f}"
