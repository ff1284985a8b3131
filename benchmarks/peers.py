"""Our warm call beside one process for each call: bare, in bubblewrap, in sandlock, in sandbox-runtime.

Every sandbox gets the same policy: all may be read, one folder may be written, and there is no network.
A sandbox with a library that stays loaded between calls is measured by its command and by that library.
"""

import json
import select
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import installs
from benchmarks.blocks import run_block
from benchmarks.calm import Calm
from benchmarks.figures import TIMES, Target, table
from benchmarks.installs import Unavailable
from benchmarks.report import Section, progress
from benchmarks.served import STOCKED
from benchmarks.servers import PANDAS_TOOLS, ROOT, TOOLS, Server, end_with_parent, environment, serving

__all__ = ["FUNCTIONS", "Function", "compare", "timed"]

Run = Callable[[list[str]], str]

_CALL_S = 60.0
_STOP_S = 10.0
_LIMIT = 0.05
_CALLS = 20
_HEADINGS = ("what", "how", "calls", "median ms", "(smallest to largest)", "our call to it")
_FROM_FILE = (
    "import asyncio, json, runpy, sys; "
    "print(json.dumps(asyncio.run(runpy.run_path(sys.argv[2])[sys.argv[3]](**json.loads(sys.argv[1])))))"
)
_ALONE = (
    "import json, sys\ndef echo(text):\n    return text\nprint(json.dumps(echo(**json.loads(sys.argv[1]))))"
)
_TEXT = '{"text": "hello"}'


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is called.

    Attributes:
        name: Its name in the report.
        arguments: The arguments of the interpreter.
        answer: The JSON that it must print.
        tool: The tool of ours that is the same function, served.
    """

    name: str
    arguments: tuple[str, ...]
    answer: str
    tool: str = "echo_async"


FUNCTIONS = (
    Function("the function alone", ("-c", _ALONE, _TEXT), '"hello"'),
    Function("the function in its tool file", ("-c", _FROM_FILE, _TEXT, str(TOOLS), "echo_async"), '"hello"'),
    Function(
        "the pandas function in its tool file",
        ("-c", _FROM_FILE, _TEXT, str(PANDAS_TOOLS), "totals"),
        json.dumps('{"e":1,"h":1,"l":2,"o":1}'),
        "totals",
    ),
)


@dataclass(slots=True)
class _Taken:
    """Seconds of our call and of each peer for one function; in place of them, why a peer has none."""

    ours: list[float] = field(default_factory=list)
    peers: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def ratio(self, peer: str) -> float | None:
        """Return our median to that of a peer."""
        if peer in self.reasons:
            return None
        return statistics.median(self.ours) / statistics.median(self.peers[peer])


def compare(folder: Path, *, rounds: int, patience_s: float) -> Section:
    """Measure every function in every peer, in turns with our warm call over HTTP.

    Args:
        folder: The folder of our server's files, and the one that a function may write.
        rounds: How many calls of each peer.
        patience_s: How long to wait for calm, in all.
    """
    taken = {function.name: _Taken() for function in FUNCTIONS}
    calm = Calm(patience_s)
    with ExitStack() as stack:
        progress("installing the peers, starting the servers")
        found = {name: _ready(make, folder, stack) for name, make in _PEERS.items()}
        servers = {
            "echo_async": stack.enter_context(serving("runner", "http", folder)),
            "totals": stack.enter_context(serving("runner", "http", folder, tools=PANDAS_TOOLS)),
        }
        for tool, server in servers.items():
            _ask(server, tool)
        for number in range(rounds):
            progress(f"peers: round {number + 1} of {rounds}")
            for function in FUNCTIONS:
                one = partial(_round, function, servers[function.tool], found, taken[function.name])
                calm.measure(one)
    return Section(
        key="peers",
        title="One process for each call",
        text=f"{table(_HEADINGS, [*_rows(taken)])}\n\nBeside them {calm}.",
        facts={name: {"ours_s": one.ours, "peers_s": one.peers} for name, one in taken.items()},
        targets=[
            Target(
                what=f"our median call, to {function.name}, {peer}",
                limit=_LIMIT,
                measured=taken[function.name].ratio(peer),
                unit=TIMES,
                reason=taken[function.name].reasons.get(peer, ""),
            )
            for function in FUNCTIONS[:2]
            for peer in _PEERS
            if peer.startswith(("bubblewrap", "sandbox-runtime"))
        ],
    )


def timed(run: Run, function: Function) -> float:
    """Return the seconds that one call took.

    Raises:
        Unavailable: It ended without the answer of the function.
    """
    started = time.perf_counter()
    printed = run([sys.executable, *function.arguments]).strip()
    took = time.perf_counter() - started
    if printed != function.answer:
        raise Unavailable(f"it gave {printed[:200]!r} instead of {function.answer}")
    return took


def _ready(make: "Callable[[Path, ExitStack], Run]", folder: Path, stack: ExitStack) -> Run | str:
    """Return a peer that has made one call, or why there is none."""
    try:
        run = make(folder, stack)
        timed(run, FUNCTIONS[0])
    except Unavailable as reason:
        return str(reason)
    return run


def _round(function: Function, server: Server, found: dict[str, Run | str], taken: _Taken) -> None:
    taken.ours += _ask(server, function.tool)
    for name, run in found.items():
        if isinstance(run, str):
            taken.reasons[name] = run
        else:
            taken.peers.setdefault(name, []).append(timed(run, function))


def _ask(server: Server, tool: str) -> list[float]:
    return run_block(server, tool, {"text": "hello"}, calls=_CALLS, load=STOCKED).latencies_s


def _rows(taken: dict[str, _Taken]) -> Iterator[tuple[str, ...]]:
    for function in FUNCTIONS:
        one = taken[function.name]
        for how, seconds in ((f"runner over HTTP, `{function.tool}`", one.ours), *one.peers.items()):
            span = f"{1000 * min(seconds):.1f} to {1000 * max(seconds):.1f}"
            to_it = f"{one.ratio(how):.3f}" if how in one.peers else ""
            median = f"{1000 * statistics.median(seconds):.1f}"
            yield function.name, how, str(len(seconds)), median, span, to_it
        for how, reason in one.reasons.items():
            yield function.name, f"{how}; not here: {reason}", "-", "-", "-", "-"


def _fork(folder: Path, stack: ExitStack) -> Run:
    script = str(Path(__file__).with_name("fork_driver.py"))
    return stack.enter_context(_driven([sys.executable, script, str(TOOLS), str(PANDAS_TOOLS)], folder))


def _subprocess(folder: Path, _stack: ExitStack) -> Run:
    return partial(_output, [], folder, environment(folder))


def _bubblewrap(folder: Path, _stack: ExitStack) -> Run:
    view = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(folder), str(folder)]
    sandbox = [installs.debian("bwrap", "bubblewrap"), *view, "--unshare-all", "--die-with-parent"]
    return partial(_output, sandbox, folder, environment(folder))


def _sandlock(folder: Path, stack: ExitStack) -> Run:
    python = installs.python_package(installs.SANDLOCK) / "bin" / "python"
    script = str(Path(__file__).with_name("sandlock_driver.py"))
    return stack.enter_context(_driven([str(python), script, str(folder)], folder))


def _srt(folder: Path, _stack: ExitStack) -> Run:
    package = _sandbox_runtime()
    settings = folder / "srt-settings.json"
    settings.write_text(json.dumps(_srt_settings(folder)))
    sandbox = [installs.node(), str(package / "dist" / "cli.js"), "--settings", str(settings), "-c"]
    run = partial(_output, sandbox, folder, environment(folder))
    return lambda command: run([shlex.join(command)])


def _srt_library(folder: Path, stack: ExitStack) -> Run:
    entry = (_sandbox_runtime() / "dist" / "index.js").as_uri()
    script = str(Path(__file__).with_name("npm") / "library.mjs")
    driver = [installs.node(), script, entry, json.dumps(_srt_settings(folder))]
    return stack.enter_context(_driven(driver, folder))


_PEERS = {
    "fork per call of a warm interpreter, no sandbox": _fork,
    "subprocess per call": _subprocess,
    "bubblewrap per call": _bubblewrap,
    f"{installs.SANDLOCK.replace('==', ' ')} per call, its library": _sandlock,
    "sandbox-runtime 0.0.83 per call, its command srt": _srt,
    "sandbox-runtime 0.0.83 per call, its library": _srt_library,
}


def _sandbox_runtime() -> Path:
    for program, package in (("bwrap", "bubblewrap"), ("socat", "socat"), ("rg", "ripgrep")):
        installs.debian(program, package)
    return installs.sandbox_runtime()


def _srt_settings(folder: Path) -> dict[str, dict[str, list[str]]]:
    return {
        "filesystem": {"denyRead": [], "allowWrite": [str(folder)], "denyWrite": []},
        "network": {"allowedDomains": [], "deniedDomains": []},
    }


def _output(sandbox: list[str], folder: Path, variables: dict[str, str], command: list[str]) -> str:
    whole = [*sandbox, *command]
    try:
        done = subprocess.run(
            whole, cwd=folder, env=variables, capture_output=True, text=True, timeout=_CALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"it did not run: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


@contextmanager
def _driven(driver: list[str], folder: Path) -> Iterator[Run]:
    """Keep a library loaded in a process of its own, which runs one command for each line that it reads."""
    with subprocess.Popen(
        driver,
        cwd=ROOT,
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    ) as process:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("the driver was started without pipes")
        requests, answers, errors = process.stdin, process.stdout, process.stderr

        def run(command: list[str]) -> str:
            try:
                requests.write(json.dumps(command) + "\n")
                requests.flush()
            except OSError as error:
                raise Unavailable(f"its library has ended: {errors.read().strip()[-300:]}") from error
            if not select.select([answers], [], [], _CALL_S)[0]:
                raise Unavailable(f"its library gave no answer within {_CALL_S:.0f} s")
            answer = answers.readline()
            if not answer:
                raise Unavailable(f"its library has ended: {errors.read().strip()[-300:]}")
            status, output, complaint = json.loads(answer)
            if status != 0:
                raise Unavailable(f"it ended with {status}: {complaint[-300:]}")
            return str(output)

        try:
            yield run
        finally:
            # At the end of its input it removes its files below /tmp.
            requests.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
