"""One process for one call: the same function in an interpreter of its own, bare or in a sandbox of others.

Every sandbox gets the same policy: all may be read, one folder may be written, and there is no network.
Where a sandbox has a library that stays loaded between calls, that is measured as well as its command.
"""

import json
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import installs
from benchmarks.installs import Unavailable
from benchmarks.servers import PANDAS_TOOLS, ROOT, TOOLS, end_with_parent, environment

__all__ = ["FUNCTIONS", "WAYS", "Function", "Way", "ways"]

_CALL_S = 60.0
_STOP_S = 10.0
_NAMES = {
    "fork": "fork per call of a warm interpreter, no sandbox",
    "subprocess": "subprocess per call",
    "bubblewrap": "bubblewrap per call",
    "sandlock": f"{installs.SANDLOCK.replace('==', ' ')} per call, its library",
    "srt": "sandbox-runtime 0.0.83 per call, its command srt",
    "srt-library": "sandbox-runtime 0.0.83 per call, its library",
    "nsjail": "nsjail per call",
}
WAYS = tuple(_NAMES.values())
_FROM_FILE = (
    "import asyncio, json, runpy, sys; "
    "print(json.dumps(asyncio.run(runpy.run_path(sys.argv[2])[sys.argv[3]](**json.loads(sys.argv[1])))))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """What is called.

    Attributes:
        name: What the report calls it.
        arguments: Of the interpreter.
        answer: What it must print, as JSON.
    """

    name: str
    arguments: tuple[str, ...]
    answer: str


FUNCTIONS = (
    Function(
        name="the function alone",
        arguments=(
            "-c",
            "import json, sys\ndef echo(text):\n    return text\n"
            "print(json.dumps(echo(**json.loads(sys.argv[1]))))",
            '{"text": "hello"}',
        ),
        answer='"hello"',
    ),
    Function(
        name="the function in its tool file",
        arguments=("-c", _FROM_FILE, '{"text": "hello"}', str(TOOLS), "echo_async"),
        answer='"hello"',
    ),
    Function(
        name="the pandas function in its tool file",
        arguments=("-c", _FROM_FILE, '{"text": "hello"}', str(PANDAS_TOOLS), "totals"),
        answer=json.dumps('{"e":1,"h":1,"l":2,"o":1}'),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a command in a process of its own.

    Attributes:
        name: What the report calls it.
        run: Runs a command, with the folder it may write; returns what it printed.
    """

    name: str
    run: Callable[[list[str]], str]

    def seconds(self, function: Function) -> float:
        """Return how long one call took.

        Raises:
            Unavailable: It ended otherwise than with the answer it must give.
        """
        command = [sys.executable, *function.arguments]
        begun = time.perf_counter()
        said = self.run(command)
        took = time.perf_counter() - begun
        if said.strip() != function.answer:
            raise Unavailable(f"{self.name} gave {said.strip()[:200]!r} instead of {function.answer}")
        return took


@contextmanager
def ways(folder: Path) -> Iterator[dict[str, Way | str]]:
    """Give every way by its name, ready until the block ends; in place of one, why there is none."""
    makers: dict[str, Callable[[Path, ExitStack], Callable[[list[str]], str]]] = {
        "fork": _fork,
        "subprocess": _subprocess,
        "bubblewrap": _bubblewrap,
        "sandlock": _sandlock,
        "srt": _srt,
        "srt-library": _srt_library,
        "nsjail": _nsjail,
    }
    found: dict[str, Way | str] = {}
    with ExitStack() as stack:
        for key, make in makers.items():
            name = _NAMES[key]
            try:
                way = Way(name=name, run=make(folder, stack))
                way.seconds(FUNCTIONS[0])
            except Unavailable as reason:
                found[name] = str(reason)
            else:
                found[name] = way
        yield found


def _fork(folder: Path, stack: ExitStack) -> Callable[[list[str]], str]:
    script = str(Path(__file__).with_name("fork_driver.py"))
    return stack.enter_context(_driven([sys.executable, script, str(TOOLS), str(PANDAS_TOOLS)], folder))


def _subprocess(folder: Path, stack: ExitStack) -> Callable[[list[str]], str]:
    variables = environment(folder)
    return lambda command: _output(command, folder, variables)


def _bubblewrap(folder: Path, stack: ExitStack) -> Callable[[list[str]], str]:
    view = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(folder), str(folder)]
    sandbox = [installs.debian("bwrap", "bubblewrap"), *view, "--unshare-all", "--die-with-parent"]
    variables = environment(folder)
    return lambda command: _output([*sandbox, *command], folder, variables)


def _nsjail(folder: Path, stack: ExitStack) -> Callable[[list[str]], str]:
    program = installs.python_package("nsjail") / "bin" / "nsjail"
    view = ["--chroot", "/", "--bindmount", str(folder), "--cwd", str(folder), "--rlimit_as", "max"]
    sandbox = [str(program), "--mode", "o", "--really_quiet", *view, "--keep_env", "--"]
    variables = environment(folder)
    return lambda command: _output([*sandbox, *command], folder, variables)


def _srt(folder: Path, stack: ExitStack) -> Callable[[list[str]], str]:
    package = _sandbox_runtime()
    settings = folder / "srt-settings.json"
    settings.write_text(json.dumps(_srt_settings(folder)))
    sandbox = [installs.node(), str(package / "dist" / "cli.js"), "--settings", str(settings), "-c"]
    variables = environment(folder)
    return lambda command: _output([*sandbox, shlex.join(command)], folder, variables)


def _srt_library(folder: Path, stack: ExitStack) -> Callable[[list[str]], str]:
    package = _sandbox_runtime()
    entry = (package / "dist" / "index.js").as_uri()
    script = str(Path(__file__).with_name("npm") / "library.mjs")
    driver = [installs.node(), script, entry, json.dumps(_srt_settings(folder))]
    return stack.enter_context(_driven(driver, folder))


def _sandlock(folder: Path, stack: ExitStack) -> Callable[[list[str]], str]:
    python = installs.python_package(installs.SANDLOCK) / "bin" / "python"
    script = str(Path(__file__).with_name("sandlock_driver.py"))
    return stack.enter_context(_driven([str(python), script, str(folder)], folder))


def _sandbox_runtime() -> Path:
    for program, package in (("bwrap", "bubblewrap"), ("socat", "socat"), ("rg", "ripgrep")):
        installs.debian(program, package)
    return installs.sandbox_runtime()


def _srt_settings(folder: Path) -> dict[str, dict[str, list[str]]]:
    return {
        "filesystem": {"denyRead": [], "allowWrite": [str(folder)], "denyWrite": []},
        "network": {"allowedDomains": [], "deniedDomains": []},
    }


def _output(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=_CALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"it did not run: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


@contextmanager
def _driven(driver: list[str], folder: Path) -> Iterator[Callable[[list[str]], str]]:
    """Keep a library loaded in a process of its own, which runs one command for each line it reads."""
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
        asked, said, errors = process.stdin, process.stdout, process.stderr

        def run(command: list[str]) -> str:
            try:
                asked.write(json.dumps(command) + "\n")
                asked.flush()
            except OSError as error:
                raise Unavailable(f"its library is gone: {errors.read().strip()[-300:]}") from error
            if not select.select([said], [], [], _CALL_S)[0]:
                raise Unavailable(f"its library gave no answer within {_CALL_S:.0f} s")
            answer = said.readline()
            if not answer:
                raise Unavailable(f"its library ended: {errors.read().strip()[-300:]}")
            status, output, complaint = json.loads(answer)
            if status != 0:
                raise Unavailable(f"it ended with {status}: {complaint[-300:]}")
            return str(output)

        try:
            yield run
        finally:
            # With its input over it tidies up what it has put into /tmp.
            asked.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
