"""Helpers for end-to-end tests: a toolset in this process, requests to it, and their results."""

import asyncio
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from ports import free_port

from runner.call import Completed, Request, execute, relay
from runner.files.my_files import open_library
from runner.files.sessions import KnownSessions, Session
from runner.settings.isolation import AUTO
from runner.settings.settings import Settings
from runner.settings.trust import CONFIG_FILE, read_judged, trust
from runner.steps.listener import ClientRefusal
from runner.store.protocol import Origin
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.worker.wire import RequestFacts
from sandbox.probe.machine import Tier, missing

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tests" / "tools"
SAMPLES = ROOT / "sample_tools"

# The machine may be busy with other tests.
_PATIENCE_S = 180.0
_LOOK_EVERY_S = 0.01


def settings_in(folder: Path, **more: Any) -> Settings:
    """Return settings with state and store in a folder; files that calls leave in homes are ignored."""
    store = (folder / "store").as_uri()
    places = {"state_dir": folder / "state", "store": store}
    usual: dict[str, Any] = {**places, "generated": "ignore", "load_timeout_s": _PATIENCE_S}
    return Settings(**(usual | more))


def strongest_tier() -> str:
    """Return the tier that `auto` chooses on this machine."""
    return next((tier for tier in AUTO if not missing(tier)), Tier.PROCESS).value


@dataclass
class Listening:
    """A client that records the notifications it receives."""

    notifications: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.notifications.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ClientRefusal(-32601, f"no {method} here")


def request(user: str, tool: str, arguments: Mapping[str, Any], client: Listening | None = None) -> Request:
    return _request(user, "tools/call", {"name": tool, "arguments": dict(arguments)}, client)


async def listed(toolset: Toolset, user: str) -> set[str]:
    """Return the names of the tools that a user's worker lists."""
    return {tool["name"] for tool in (await relay(toolset, _request(user, "tools/list", {})))["tools"]}


def _request(user: str, method: str, params: Mapping[str, Any], client: Listening | None = None) -> Request:
    prefix = "io.modelcontextprotocol/"
    meta = {
        prefix + "protocolVersion": "2026-07-28",
        prefix + "clientInfo": {"name": "test", "version": "1"},
        prefix + "clientCapabilities": {},
        "progressToken": 1,
    }
    return Request(
        user=User(user),
        method=method,
        params={**params, "_meta": meta},
        facts=RequestFacts(request_id=1, protocol="2026-07-28", session_id="s", transport="stdio"),
        client=client or Listening(),
        inline_max_bytes=300 * 1024 * 1024,
    )


@asynccontextmanager
async def open_toolset(
    tool_file: Path, folder: Path, user: str | None = None, *, keep_s: float = 0, **more: Any
) -> AsyncIterator[Toolset]:
    settings = settings_in(folder, **more)
    caller = User(user) if user else None
    async with Toolset.open(settings, [str(tool_file)], user=caller, keep_s=keep_s) as toolset:
        yield toolset


async def put_file(folder: Path, user: str, name: str, content: bytes) -> str:
    """Put a file into My Files from outside the server whose state is in `folder`; return the file's id."""
    files = open_library(settings_in(folder)).of(user)
    return (await files.put(content, name=name, origin=Origin.UPLOADED)).id


async def call(toolset: Toolset, user: str, tool: str, /, **arguments: Any) -> Completed:
    return await execute(toolset, request(user, tool, arguments))


def error_code(completed: Completed) -> str | None:
    code: str | None = completed.processed.value.get("meta_data", {}).get("error_code")
    return code


def details(completed: Completed) -> Mapping[str, Any]:
    found: Mapping[str, Any] = completed.processed.value["meta_data"]["details"]
    return found


@dataclass(frozen=True)
class Ran:
    """Outcome of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return False after `_PATIENCE_S`."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    return holds


async def becomes(condition: Callable[[], bool]) -> bool:
    """Wait like `until`, while the other tasks of the loop run."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (holds := condition()) and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_EVERY_S)
    return holds


def assert_reads_only_prolong(sessions: KnownSessions, session: Session) -> None:
    """Check that a read begins no session, and keeps a known one from its end."""
    with sessions.using(session, to_read=True):
        assert list(sessions.known()) == []
    assert list(sessions.known()) == []
    with sessions.using(session):
        pass
    with sessions.using(session, to_read=True):
        assert sessions.claim(session) is None
    assert list(sessions.known()) == [session]


@dataclass
class Turns:
    """Turns of the event loop in which another task ran."""

    count: int = 0


@asynccontextmanager
async def counting_turns() -> AsyncIterator[Turns]:
    """Run a task beside the block that does nothing in each turn of the event loop; yield their number."""
    turns = Turns()

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            turns.count += 1

    counter = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counter.cancel()


def stop(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.communicate(timeout=_PATIENCE_S)
    finally:
        process.kill()


def alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def held(mark: Path) -> bool:
    """Return whether a process that locked `mark`, or a descendant, is alive, whatever its pid."""
    try:
        with mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def server_url(process: "subprocess.Popen[str]") -> str:
    """Wait until a server prints its MCP endpoint; return the URL."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        address = re.search(r"http://\S+/mcp", line)
        if address:
            return address.group()
    raise AssertionError(f"the server ended with {process.wait()} before it served:\n{''.join(lines)}")


def outer_environment() -> dict[str, str]:
    """Return our environment without variables of the runner and of coverage measurement."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("RUNNER_", "COV_"))}


def trusted_config(text: str) -> None:
    """Write `runner.toml` of the current folder and trust it."""
    Path(CONFIG_FILE).write_text(text)
    trust([read_judged(Path(CONFIG_FILE))])


def environment_in(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a command whose state and store are in `folder`."""
    places = {"RUNNER_STATE_DIR": str(folder / "state"), "RUNNER_STORE": (folder / "store").as_uri()}
    return {**outer_environment(), **places, **more}


@contextmanager
def serving_over_http(
    file: Path, environment: Mapping[str, str], *options: str, cwd: Path = ROOT
) -> Iterator[str]:
    """Run `runner serve FILE --transport http`; yield the URL of its MCP endpoint."""
    command = [sys.executable, "-m", "runner.cli.app", "serve", str(file), "--transport", "http"]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], env=environment, cwd=cwd, stderr=subprocess.PIPE, text=True
    )
    try:
        yield server_url(process)
    finally:
        stop(process)


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def saying_hello() -> Iterator[int]:
    """Serve `hello` at every path of a loopback address; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hello) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def plain_server(file: Path, *arguments: str) -> Iterator[str]:
    """Serve a file with `fastmcp run` over HTTP; yield the URL of its MCP endpoint."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("fastmcp")), "run", str(file), "--transport", "http"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--no-banner", "--skip-env", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert until(lambda: _listens(port))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        stop(process)


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def playground_address(process: "subprocess.Popen[str]") -> tuple[str, str | None, str]:
    """Wait until a server prints its address; return address, start key and output."""
    assert process.stderr is not None
    lines, base, has_page = [], "", True
    for line in process.stderr:
        lines.append(line)
        has_page = has_page and "playground not available" not in line
        served = re.search(r"serving .* at (http://\S+)/mcp", line)
        base = served[1] if served else base
        opened = re.search(r"Playground: \S+?/(?:\?key=(\S+))?$", line)
        if base and (opened or not has_page):
            return base, opened[1] if opened else None, "".join(lines)
    raise AssertionError(f"the server ended with {process.wait()} before it served:\n{''.join(lines)}")
