"""A fleet for tests: a real Redis, a bucket on a real S3, worker nodes as processes, a host in this one."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import redis
from ports import free_port
from support import Listening, request

from runner.call import Completed, execute
from runner.fleet.engine import FleetEngine
from runner.settings.settings import Settings
from runner.store.s3.bucket import BucketAddress
from runner.toolset.toolset import Toolset

TOOLS = Path(__file__).parents[1] / "tools" / "fleet_tools.py"
PATIENCE_S = 180.0

PROTOCOL = "2025-11-25"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
ADD = {
    "jsonrpc": "2.0",
    "id": 3,
    "method": "tools/call",
    "params": {"name": "add", "arguments": {"a": 1, "b": 2}},
}


@dataclass
class RedisServer:
    """A Redis that can be killed, stopped and started again."""

    folder: Path
    options: Sequence[str] = ()
    address: str = "127.0.0.1"
    prefix: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}/0"

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program, "redis-server is missing: apt-get install redis-server, as scripts/setup does"
        usual = ["--port", str(self.port), "--bind", self.address, "--dir", str(self.folder), "--save", ""]
        # As docs/deploying.md has it: what it has acknowledged is there after a restart.
        durable = ["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, program, *usual, *durable, "--protected-mode", "no", *self.options],
                stdout=log,
                stderr=log,
            )
        if not self.prefix:
            wait_until(self.answers)

    def answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.exceptions.RedisError:
            return False

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=60)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class NodeProcess:
    """A `runner worker`, with its output."""

    process: "subprocess.Popen[bytes]"
    log: Path
    folder: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def names(self) -> list[str]:
        """Names of the node in the fleet, one for each of its lives."""
        return [line.split()[2] for line in self.output.splitlines() if line.startswith("worker node ")]

    @property
    def name(self) -> str:
        """Name of the node in the fleet since its latest start."""
        return self.names[-1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def children(self) -> set[int]:
        """Return the processes below it, those of its sandbox among them."""
        return below(self.process.pid)


@dataclass
class World:
    """All of it."""

    folder: Path
    bucket: BucketAddress
    redis: RedisServer
    more: dict[str, Any] = field(default_factory=dict)
    endpoint: str | None = None
    nodes: list[NodeProcess] = field(default_factory=list)

    def settings(self, name: str, **more: Any) -> dict[str, Any]:
        bucket = self.bucket
        (self.folder / name / "homes").mkdir(parents=True, exist_ok=True)
        key = self.folder / "fleet.key"
        if not key.exists():
            key.write_text(secrets.token_hex(32))
            key.chmod(0o600)
        return {
            "redis_url": self.redis.url,
            "fleet_key_file": str(key),
            "store": f"s3://{bucket.bucket}/{bucket.prefix.rstrip('/')}",
            "state_dir": str(self.folder / name / "state"),
            "homes": str(self.folder / name / "homes"),
            "generated": "ignore",
            "isolation": "process",
            **self.more,
            **more,
        }

    def environment(self, name: str, **more: Any) -> dict[str, str]:
        settings = self.settings(name, **more)
        variables = {f"RUNNER_{key.upper()}": str(value) for key, value in settings.items()}
        usual = {key: value for key, value in os.environ.items() if not key.startswith("RUNNER_")}
        return {**usual, **variables, "AWS_ENDPOINT_URL_S3": self.endpoint or str(self.bucket.endpoint)}

    def node(
        self, name: str, *, tools: Path = TOOLS, prefix: Sequence[str] = (), wait: bool = True, **more: Any
    ) -> NodeProcess:
        """Start a worker node."""
        environment = self.environment(name, **more)
        log = self.folder / name / "log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "runner", "worker", str(tools)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        node = NodeProcess(process, log, self.folder / name)
        self.nodes.append(node)
        if wait:
            wait_until(lambda: node.names or process.poll() is not None)
            assert process.poll() is None, node.output
        return node

    @asynccontextmanager
    async def host(
        self, name: str = "host", *, tools: Path = TOOLS, **more: Any
    ) -> AsyncIterator["HostSide"]:
        """Be a host, in this process."""
        settings = Settings(**self.settings(name, **more))
        async with (
            Toolset.open(settings, [str(tools)]) as toolset,
            FleetEngine.open(toolset) as engine,
        ):
            yield HostSide(toolset, engine)

    def runs(self, marker: str) -> int:
        """Return how often the code of a tool has run that notes so below this name."""
        path = self.folder / "runs" / marker
        return len(path.read_text().splitlines()) if path.exists() else 0

    def end_runs(self, marker: str) -> None:
        """Let the code that notes its runs below this name return."""
        (self.folder / "runs" / f"{marker}.end").touch()


@dataclass
class HostProcess:
    """A `runner serve` over HTTP.

    Attributes:
        base: Its address, without a path.
        tokens: The file of the tokens that it knows.
    """

    base: str
    process: "subprocess.Popen[bytes]"
    folder: Path
    tokens: Path


@contextmanager
def host_process(
    world: World, name: str, tokens: Mapping[str, str] | None, **more: Any
) -> Iterator[HostProcess]:
    """Run a host over HTTP as a process that accepts these tokens; None leaves auth to the settings."""
    world.settings(name)
    folder = world.folder / name
    known, log = folder / "auth.json", folder / "log"
    if tokens is not None:
        known.write_text(json.dumps(tokens))
        known.chmod(0o600)
        more = {"auth__kind": "static", "auth__tokens_file": known, **more}
    command = [sys.executable, "-m", "runner", "serve", str(TOOLS), "--transport", "http", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=world.environment(name, **more),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: "/mcp" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        address = next(word for word in log.read_text().split() if word.endswith("/mcp"))
        yield HostProcess(address.removesuffix("/mcp"), process, folder, known)
    finally:
        process.terminate()
        # Calls that run are given the rest of their ladder.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def headers(token: str, session: str | None = None) -> dict[str, str]:
    """Return what a client of MCP sends along, whose token it has and in which session."""
    return {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL,
        **({} if session is None else {"Mcp-Session-Id": session}),
    }


def mcp(base: str, message: Mapping[str, Any], session: str | None, token: str) -> httpx2.Response:
    """Send a message of MCP to a host, in a session if one is named."""
    return httpx2.post(f"{base}/mcp", json=message, headers=headers(token, session), timeout=180)


@dataclass
class HostSide:
    """A host."""

    toolset: Toolset
    engine: FleetEngine

    @property
    def placed(self) -> Mapping[str, str]:
        """Nodes of the requests that have one, by the request."""
        return {call.id: call.node for call in self.engine.calls.values() if call.node is not None}

    @property
    def started(self) -> Sequence[str]:
        """Requests whose code runs, as their nodes have reported."""
        return [call.id for call in self.engine.calls.values() if call.has_started]

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        user: str = "ann",
        client: Any = None,
        **facts: Any,
    ) -> Completed:
        call = request(user, tool, arguments or {}, client or Listening())
        if facts:
            call = replace(call, facts=replace(call.facts, **facts))
        return await execute(self.toolset, call)

    async def result(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, user: str = "ann"
    ) -> Any:
        completed = await self.call(tool, arguments, user=user)
        assert not completed.processed.is_error, completed.processed.value
        return completed.processed.value["results"]


def text_of(reply: object) -> str:
    """Return a reply of Redis as text; it must be bytes."""
    assert isinstance(reply, bytes)
    return reply.decode()


def code_of(completed: Completed) -> str | None:
    """Return the error code of a call, if it ended with one."""
    meta = completed.processed.value.get("meta_data") or {}
    code: str | None = meta.get("error_code")
    return code


def wait_until(holds: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    ends = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends, f"it did not come to hold within {within_s} seconds"
        time.sleep(0.02)


async def until(holds: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Wait until something holds, while the loop goes on."""
    ends = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends, f"it did not come to hold within {within_s} seconds"
        await asyncio.sleep(0.02)


def wrong_by(offset: str) -> list[str]:
    """Return what a command begins with whose clock is to be wrong."""
    assert shutil.which("faketime"), "faketime is missing: apt-get install faketime, as scripts/setup does"
    # As `faketime` does it, without a process between. The loader knows what $LIB is.
    library = "LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1"
    return ["env", library, f"FAKETIME={offset}", "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"]


def below(pid: int) -> set[int]:
    """Return all processes below one."""
    found = set[int]()
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in tasks.read_text().split():
                found |= {int(child)} | below(int(child))
    return found


def alive(pids: set[int]) -> set[int]:
    """Return which of these processes still run."""
    running = set[int]()
    for pid in pids:
        with contextlib.suppress(OSError):
            if "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                running.add(pid)
    return running


@contextmanager
def world_in(folder: Path, bucket: BucketAddress, *options: str, **more: Any) -> Iterator[World]:
    """A Redis, and whatever nodes a test starts; all of it ends with the block."""
    (folder / "runs").mkdir()
    (folder / "runs").chmod(0o777)
    server = RedisServer(folder, options)
    server.start()
    world = World(folder, bucket, server, {"allow_write": str(folder / "runs"), **more})
    try:
        yield world
    finally:
        for node in world.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.signal(signal.SIGCONT)
            node.process.terminate()
        for node in world.nodes:
            try:
                node.process.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()
        server.kill()
