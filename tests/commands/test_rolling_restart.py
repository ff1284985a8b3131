"""Two servers behind a proxy are restarted, one after the other, while calls arrive: none is lost."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client
from ports import free_port
from support import server_url

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

TOOL = """
import asyncio, os
from fastmcp import FastMCP

mcp = FastMCP("rolled")


@mcp.tool
async def echo(number: int) -> dict:
    await asyncio.sleep(0.3)
    return {"number": number, "server": os.environ["SERVER"]}
"""
_CALLERS = 3
# So long the balancer may take to look, also on a busy machine.
_SETTINGS = {"RUNNER_STOP_DELAY_S": "3", "RUNNER_LOG_LEVEL": "error"}
_PATIENCE_S = 180.0


@dataclass
class Balancer:
    """Passes each new connection to a server that says it is ready, as a proxy with health checks does.

    Between two looks a server may have gone; then the next one is tried, as nginx and HAProxy do.
    """

    ports: tuple[int, ...]
    ready: list[int] = field(default_factory=list)
    turns: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    passing: "set[asyncio.Task[object]]" = field(default_factory=set)

    async def watch(self) -> None:
        async with httpx2.AsyncClient(timeout=60) as http:
            while True:
                ready = []
                for port in self.ports:
                    with contextlib.suppress(httpx2.HTTPError):
                        if (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                            ready.append(port)
                self.ready = ready
                await asyncio.sleep(0.1)

    async def until(self, port: int, *, ready: bool) -> None:
        while (port in self.ready) is not ready:
            await asyncio.sleep(0.05)

    async def server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server whose turn it is; to the next where one has just gone and refuses."""
        while True:
            # All checks of a busy machine may take too long at once.
            while not self.ready:
                await asyncio.sleep(0.05)
            self.turns += 1
            port = self.ready[self.turns % len(self.ready)]
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                self.ready = [other for other in self.ready if other != port]

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = asyncio.current_task()
        assert mine is not None
        self.passing.add(mine)
        back_reader, back_writer = await self.server()
        ways = [
            asyncio.create_task(_copy(reader, back_writer)),
            asyncio.create_task(_copy(back_reader, writer)),
        ]
        try:
            # HTTP: a peer that closes one direction sends nothing more on the other.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, back_writer):
                end.close()
            await asyncio.gather(
                *ways, writer.wait_closed(), back_writer.wait_closed(), return_exceptions=True
            )
            self.passing.discard(mine)


async def _ended(over: asyncio.Event) -> None:
    await over.wait()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def balanced(ports: tuple[int, ...]) -> AsyncIterator[tuple[Balancer, str]]:
    balancer = Balancer(ports)
    watching = asyncio.create_task(balancer.watch())
    server = await asyncio.start_server(balancer.pass_on, "127.0.0.1", 0)
    try:
        yield balancer, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        watching.cancel()
        balancer.over.set()
        await asyncio.wait({watching, *balancer.passing})


def begin(port: int, name: str, folder: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "runner", "serve", "--transport", "http", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--allow-env", "SERVER", "rolled.py"],
        env={**environment, "SERVER": name, "RUNNER_PLAYGROUND": "false", **_SETTINGS},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    server_url(process)
    return process


async def caller(url: str, first: int, stop: asyncio.Event, answers: "Counter[str]") -> int:
    """Call until told to stop, each time over a connection of its own; return how many calls were made."""
    number = first
    while not stop.is_set():
        number += _CALLERS
        while True:
            async with Client(url) as client:
                result = await client.call_tool("echo", {"number": number}, raise_on_error=False)
            if not result.is_error:
                break
            # What the contract says of a call that a server which is being stopped has not begun.
            assert "try again" in str(result.content)
            answers["told to try again"] += 1
            await asyncio.sleep(0.2)
        result_fields = result.structured_content or {}
        assert result_fields["number"] == number
        answers[result_fields["server"]] += 1
    return (number - first) // _CALLERS


async def test_no_call_lost_while_two_servers_restart(environment: dict[str, str], folder: Path) -> None:
    (folder / "rolled.py").write_text(TOOL)
    ports = (free_port(), free_port())
    servers: dict[int, subprocess.Popen[str]] = {}
    answers: Counter[str] = Counter()
    stop = asyncio.Event()
    try:
        for port, name in zip(ports, ("one", "two"), strict=True):
            servers[port] = await asyncio.to_thread(begin, port, name, folder, environment)
        async with balanced(ports) as (balancer, url):
            for port in ports:
                await balancer.until(port, ready=True)
            load = [asyncio.create_task(caller(url, first, stop, answers)) for first in range(_CALLERS)]
            for port, name in zip(ports, ("new one", "new two"), strict=True):
                servers[port].send_signal(signal.SIGTERM)
                await balancer.until(port, ready=False)
                assert await asyncio.to_thread(servers[port].wait, _PATIENCE_S) == 0
                log = servers[port].stderr
                assert log is not None
                log.close()
                servers[port] = await asyncio.to_thread(begin, port, name, folder, environment)
                await balancer.until(port, ready=True)
                while not (answers[name] or any(task.done() for task in load)):
                    await asyncio.sleep(0.05)
            stop.set()
            made = sum(await asyncio.gather(*load))
    finally:
        for process in servers.values():
            process.kill()
            process.communicate()

    answered = sum(count for message, count in answers.items() if message != "told to try again")
    assert made == answered
    assert answers["new one"] > 0
    assert answers["new two"] > 0
