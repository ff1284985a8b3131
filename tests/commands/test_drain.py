"""SIGTERM while calls run: they may end, new ones are refused, what lasts is ended; a second one hurries."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from mcp.shared.exceptions import MCPError
from support import server_url

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

TOOL = """
import asyncio
from pathlib import Path
from fastmcp import Context, FastMCP

mcp = FastMCP("slow")


@mcp.tool
async def takes(seconds: float, ctx: Context) -> str:
    await ctx.report_progress(1)
    await asyncio.sleep(seconds)
    return "done"
"""


RUN = """

mcp.run(show_banner=False)
"""


@pytest.fixture(params=["serve", "proxy"])
def kind(request: pytest.FixtureRequest) -> str:
    """Kind of server: a tool file, or another server behind the proxy."""
    return str(request.param)


@contextmanager
def serving(
    kind: str, environment: dict[str, str], folder: Path, **more: str
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    tool = folder / "slow.py"
    tool.write_text(TOOL if kind == "serve" else TOOL + RUN)
    target = [str(tool)] if kind == "serve" else ["--", sys.executable, str(tool)]
    command = [sys.executable, "-m", "runner", kind, "--transport", "http", "--port", "0", *target]
    with subprocess.Popen(
        command, env={**environment, **more}, cwd=folder, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield server_url(process), process
        finally:
            process.kill()
            process.communicate()


class Called:
    """A call under way, and what its client heard."""

    def __init__(self, url: str, seconds: float) -> None:
        self.lines: list[str | None] = []
        self.started = asyncio.Event()
        self.task = asyncio.create_task(self._run(url, seconds))

    async def _run(self, url: str, seconds: float) -> str:
        async def progress(_done: float, _total: float | None, message: str | None) -> None:
            self.lines.append(message)
            self.started.set()

        async with Client(url, progress_handler=progress) as client:
            # Otherwise it asks for the list once it has the answer, perhaps when nobody serves it.
            await client.list_tools()
            result = await client.call_tool("takes", {"seconds": seconds}, raise_on_error=False)
        return " ".join(block.text for block in result.content if block.type == "text")


async def refusal(client: "Client[Any]") -> str:
    """Return what a call is told; the client may ask for the list of tools too, which is refused as well."""
    try:
        result = await client.call_tool("takes", {"seconds": 0}, raise_on_error=False)
    except MCPError as error:
        return str(error)
    return str(result.content)


async def announcement(url: str) -> str:
    """Wait until `/readyz` says that the server is being stopped, and return its words."""
    failed: dict[str, str] = {}
    async with httpx2.AsyncClient(timeout=180) as http:
        while "server" not in failed:
            failed = (await http.get(url.replace("/mcp", "/readyz"))).json().get("failed", {})
    return failed["server"]


async def test_drain_lets_call_in_flight_end_and_refuses_new_ones(
    kind: str, environment: dict[str, str], folder: Path
) -> None:
    with serving(kind, environment, folder) as (url, process):
        async with Client(url) as late:
            running = Called(url, 15)
            await running.started.wait()
            os.kill(process.pid, signal.SIGTERM)
            await announcement(url)
            refused = await refusal(late)

        assert "done" in await running.task
        message = " ".join(filter(None, running.lines))
        assert "The server is being stopped. The tool will be ended in 25 seconds" in message
        assert "is being stopped and takes no new calls; try again" in refused
        assert await asyncio.to_thread(process.wait, 180) == 0


async def test_call_longer_than_drain_ends_with_cancelled(
    kind: str, environment: dict[str, str], folder: Path
) -> None:
    with serving(kind, environment, folder, RUNNER_DRAIN_S="1") as (url, process):
        running = Called(url, 25)
        await running.started.wait()
        os.kill(process.pid, signal.SIGTERM)

        assert "E_CANCELLED" in await running.task
        assert await asyncio.to_thread(process.wait, 180) == 0


async def test_delayed_drain_announces_first_and_accepts_calls(
    kind: str, environment: dict[str, str], folder: Path
) -> None:
    with serving(kind, environment, folder, RUNNER_STOP_DELAY_S="60") as (url, process):
        async with Client(url) as client:
            await client.call_tool("takes", {"seconds": 0})
            process.send_signal(signal.SIGTERM)
            announced = await announcement(url)
            meanwhile = await client.call_tool("takes", {"seconds": 0})
            async with Client(url) as newcomer:
                new = await newcomer.call_tool("takes", {"seconds": 0})
            process.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(process.wait, 180)

    assert "soon takes no new calls" in announced
    assert (meanwhile.data, new.data, status) == ("done", "done", 0)


async def test_second_signal_ends_calls_at_once(kind: str, environment: dict[str, str], folder: Path) -> None:
    with serving(kind, environment, folder, RUNNER_DRAIN_S="300") as (url, process):
        running = Called(url, 25)
        await running.started.wait()
        os.kill(process.pid, signal.SIGTERM)
        await announcement(url)
        os.kill(process.pid, signal.SIGTERM)

        # Neither the drain nor the call was waited for: both would have let it be done.
        assert "E_CANCELLED" in await running.task
        assert await asyncio.to_thread(process.wait, 180) == 0
