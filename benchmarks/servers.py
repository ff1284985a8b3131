"""The servers that are compared, each its own process: plain FastMCP, a FastMCP proxy, `runner serve`."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.wire import LATEST, Connection, HttpConnection, StdioConnection
from sandbox.syscalls import PR_SET_PDEATHSIG, prctl

__all__ = [
    "PANDAS_TOOLS",
    "ROOT",
    "TOOLS",
    "USER",
    "Kind",
    "Server",
    "Transport",
    "end_with_parent",
    "environment",
    "free_port",
    "serving",
    "stop",
]

Transport = Literal["stdio", "http"]
Kind = Literal["plain", "runner", "proxied"]

ROOT = Path(__file__).parents[1]
USER = "bench"
TOOLS = Path(__file__).with_name("tools.py")
PANDAS_TOOLS = Path(__file__).with_name("pandas_tools.py")

_START_S = 120.0
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
# What `fastmcp run` does with a configuration that names one stdio server.
_PROXIED = """
import json, sys
from fastmcp.server import create_proxy
mcp = create_proxy(json.loads(sys.argv[1]))
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
        version: The version of the protocol in which it is spoken to.
        known: The connection over stdio, once there was one: its handshake is over then.
    """

    transport: Transport
    process: "subprocess.Popen[bytes]"
    port: int
    version: str
    known: list[Connection] = field(default_factory=list)

    def connect(self, in_flight: int) -> list[Connection]:
        """Return the connections over which `in_flight` requests can be under way at once."""
        if self.transport == "http":
            return [HttpConnection(self.port, version=self.version) for _ in range(in_flight)]
        if not self.known:
            self.known.append(StdioConnection(self.process, version=self.version))
        return self.known


def environment(folder: Path) -> dict[str, str]:
    """Return an environment whose runner has the default settings, and its files under `folder`."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("RUNNER_", "FASTMCP_"))
    }
    # An installed package has its bytecode; a checkout gets it in the first run, which is not counted.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    homes = folder / "homes"
    homes.mkdir(mode=0o700, exist_ok=True)
    return {
        **environment,
        # `fastmcp call` starts `fastmcp run` by its name, and would ask for a newer release of itself.
        "PATH": f"{Path(sys.executable).parent}:{environment.get('PATH', '')}",
        "FASTMCP_CHECK_FOR_UPDATES": "off",
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
        "RUNNER_HOMES": str(homes),
        "RUNNER_USER": USER,
    }


@contextmanager
def serving(
    kind: Kind,
    transport: Transport,
    folder: Path,
    *,
    tools: Path = TOOLS,
    version: str = LATEST,
    program: Sequence[str] = ("-m", "runner"),
) -> Iterator[Server]:
    """Serve a tool file until the block ends.

    Args:
        kind: Plain FastMCP, a FastMCP proxy in front of that over stdio, or the runner.
        transport: The transport of its clients.
        folder: The folder of its files.
        tools: The tool file.
        version: The protocol version of its clients.
        program: The arguments with which the interpreter runs the runner.

    Raises:
        RuntimeError: The server did not start.

    An error that is raised in the block carries the end of the server's log as a note.
    """
    port = 0 if transport == "stdio" else free_port()
    pipe = subprocess.PIPE if transport == "stdio" else subprocess.DEVNULL
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".log", delete=False) as errors:
        log = Path(errors.name)
        process = subprocess.Popen(
            [sys.executable, *_command(kind, transport, port, tools, program)],
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            cwd=ROOT,
            env=environment(folder),
            preexec_fn=end_with_parent,
        )
    try:
        if transport == "http":
            _wait_for(process, port)
        yield Server(transport=transport, process=process, port=port, version=version)
    except (RuntimeError, ConnectionError) as error:
        error.add_note(f"The last words of {kind} over {transport}:\n{_last_words(log)}")
        raise
    finally:
        stop(process)


def end_with_parent() -> None:
    """End the calling process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _command(kind: Kind, transport: Transport, port: int, tools: Path, program: Sequence[str]) -> list[str]:
    if kind == "plain":
        return ["-c", _PLAIN, str(tools), transport, str(port)]
    if kind == "proxied":
        behind = {"command": sys.executable, "args": ["-c", _PLAIN, str(tools), "stdio"]}
        configuration = json.dumps({"mcpServers": {"behind": behind}})
        return ["-c", _PROXIED, configuration, transport, str(port)]
    command = [*program, "serve", str(tools), "--transport", transport]
    return command if transport == "stdio" else [*command, "--port", str(port)]


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
