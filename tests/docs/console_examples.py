"""Console sessions in documents: commands with the output that they show."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ports import free_port

__all__ = ["ROOT", "Session", "code_blocks", "console_sessions", "pattern", "run"]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
Session = list[tuple[str, str]]
"""The commands of one block, each with its output; they share a folder, and servers in the background."""

_SERVER = re.compile(r"runner (serve|proxy) | &$")
_STARTED = re.compile(r"^Playground: ")


def code_blocks(text: str, language: str) -> list[str]:
    """Return the content of each fenced block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def console_sessions(text: str) -> Iterator[Session]:
    """Yield the commands of each console block with the outputs that it shows."""
    for block in code_blocks(text, "console"):
        commands = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        yield [(command, output) for command, _, output in (each.partition("\n") for each in commands)]


def pattern(output: str) -> str:
    """Make a regular expression of an output: `…` is any text, alone on a line any lines."""
    lines = (
        "(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + "\n"
        for line in output.splitlines()
    )
    # The servers of the tests take a free port.
    return "".join(lines).replace(":8000/", r":\d+/")


def run(session: Session, folder: Path, state: Path) -> None:
    """Run the commands of a session in a folder, and compare each output with the one shown."""
    port = free_port()
    environment = _environment(state, port)
    servers: list[subprocess.Popen[str]] = []
    try:
        for command, output in session:
            words = command.replace("v/bin/", "").replace(":8000/", f":{port}/")
            in_background = _SERVER.search(words)
            process = subprocess.Popen(
                # exec: a signal to the process reaches the command, and not a shell around it.
                ["bash", "-c", f"exec {words.removesuffix(' &')}" if in_background else words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if in_background:
                servers.append(process)
                shown = _until_started(process)
            else:
                shown, _ = process.communicate(timeout=100)
            # The last line may lack its end.
            lines = f"{shown.removesuffix(chr(10))}\n" if shown else ""
            assert re.fullmatch(pattern(output), lines), f"$ {command}\n{shown}"
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=120)


def _until_started(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if _STARTED.match(line):
            break
    return shown


def _environment(state: Path, port: int) -> Mapping[str, str]:
    # Without bytecode, as it may be for tests, each command would compile two thousand modules again.
    dropped = ("RUNNER_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return environment | {
        "PATH": f"{BIN}:{environment['PATH']}",
        "RUNNER_PORT": str(port),
        # So that it promises no more memory than a small machine has, and does not say so.
        "RUNNER_MAX_CALLS": "1",
        # Homes that killed tests left in /tmp are swept at a start, and logged.
        "RUNNER_LOG_LEVEL": "warning",
        "RUNNER_STATE_DIR": f"{state}/state",
        "RUNNER_STORE": f"file://{state}/store",
    }
