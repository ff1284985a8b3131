"""The two servers that are compared, each in its own process: plain FastMCP and `runner serve`."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.wire import Connection, HttpConnection, StdioConnection

__all__ = ["ROOT", "USER", "Server", "Transport", "environment", "serving"]

Transport = Literal["stdio", "http"]

ROOT = Path(__file__).parents[1]
USER = "bench"
TOOLS = Path(__file__).with_name("tools.py")

_START_S = 30.0
_STOP_S = 10.0
# What `fastmcp run` comes down to, without its banner and its look for a newer release.
_PLAIN = """
import runpy, sys
mcp = runpy.run_path(sys.argv[1])["mcp"]
if sys.argv[2] == "stdio":
    mcp.run(transport="stdio", show_banner=False)
else:
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[3]), show_banner=False)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server.

    Attributes:
        transport: How it is spoken to.
        process: The process that was started.
        port: Where it listens; 0 over stdio.
    """

    transport: Transport
    process: "subprocess.Popen[bytes]"
    port: int

    def connect(self, in_flight: int) -> list[Connection]:
        """Return the connections over which `in_flight` requests can be under way at once."""
        if self.transport == "stdio":
            return [StdioConnection(self.process)]
        return [HttpConnection(self.port) for _ in range(in_flight)]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment whose runner has the default settings, and its files under `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNNER_", "FASTMCP_"))}
    # An installed package has its bytecode; a checkout gets it in the first run, which is not counted.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    homes = folder / "homes"
    homes.mkdir(mode=0o700, exist_ok=True)
    return {
        **kept,
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
        "RUNNER_HOMES": str(homes),
        "RUNNER_USER": USER,
    }


@contextmanager
def serving(
    kind: Literal["plain", "runner"], transport: Transport, folder: Path, *flags: str
) -> Iterator[Server]:
    """Serve the tool file until the block ends.

    Args:
        kind: Which server.
        transport: How it is spoken to.
        folder: Where it keeps its files.
        flags: Further options of `runner serve`.

    Raises:
        RuntimeError: The server did not start.

    An error that leaves the block carries the server's last words as a note.
    """
    port = 0 if transport == "stdio" else _free_port()
    log = folder / f"{'-'.join([kind, transport, *flags])}.log"
    pipe = subprocess.PIPE if transport == "stdio" else subprocess.DEVNULL
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*_command(kind, transport, port), *flags],
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            cwd=ROOT,
            env=environment(folder),
        )
    try:
        if transport == "http":
            _wait_for(process, port)
        yield Server(transport=transport, process=process, port=port)
    except (RuntimeError, ConnectionError) as error:
        error.add_note(f"The last words of {kind} over {transport}:\n{_last_words(log)}")
        raise
    finally:
        _stop(process)


def _command(kind: Literal["plain", "runner"], transport: Transport, port: int) -> list[str]:
    if kind == "plain":
        return [sys.executable, "-c", _PLAIN, str(TOOLS), transport, str(port)]
    command = [sys.executable, "-m", "runner", "serve", str(TOOLS), "--transport", transport]
    return command if transport == "stdio" else [*command, "--port", str(port)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"the server on port {port} did not start")


def _last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
