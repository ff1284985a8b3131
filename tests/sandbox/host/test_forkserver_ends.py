"""Effects of a forkserver's end, and of unloadable tool files, on calls, homes and `/readyz`."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from process_tree import forkservers, zygotes
from somebody import somebody
from support import Listening, becomes, call, details, error_code, open_toolset, request

from runner.call import execute, relay
from sandbox.host.lease import Lease
from sandbox.outcome import Ending, Outcome

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

TOOL = """
import time
from pathlib import Path
from fastmcp import Context, FastMCP

mcp = FastMCP("lasting")


@mcp.tool
def echo(n: int) -> int:
    return n


@mcp.tool
async def waits(ctx: Context) -> str:
    await ctx.report_progress(1)
    time.sleep(60)
    return "waited"


@mcp.tool
def leave(username: str) -> str:
    Path(f"/tmp/{username}/left.txt").write_text("here")
    return "left"


@mcp.tool
def look(username: str) -> str:
    return Path(f"/tmp/{username}/left.txt").read_text()


def counts(username: str) -> None:
    with open(f"/tmp/{username}/runs.txt", "a") as file:
        file.write("ran\\n")


@mcp.tool
def runs(username: str) -> str:
    counts(username)
    return Path(f"/tmp/{username}/runs.txt").read_text()


@mcp.tool
def lurks(username: str) -> str:
    # Looks at the next call without reading it, does what it asks for, and ends.
    import os, socket
    from sandbox.inside.program import Channel

    def peeks(channel: Channel) -> None:
        if b"runs" in channel.connection.recv(65536, socket.MSG_PEEK):
            counts(username)
        os._exit(1)

    Channel.receive = peeks
    return "lurking"
"""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    file = tmp_path / "lasting.py"
    file.write_text(TOOL)
    return file


async def kill_forkserver(caplog: pytest.LogCaptureFixture) -> int:
    """Kill the forkserver, and wait until its host has taken note; return its process id."""
    (first,) = forkservers()
    os.kill(first, signal.SIGKILL)
    # A call that a dying worker has taken in the last moment has begun.
    assert await becomes(lambda: "forkserver ended unexpectedly" in caplog.messages)
    return first


async def test_calls_continue_after_forkserver_is_killed(
    tool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with somebody() as ann, somebody() as bob:
        async with open_toolset(tool, tmp_path) as toolset:
            assert error_code(await call(toolset, ann, "echo", n=1)) is None
            await kill_forkserver(caplog)

            several = await asyncio.gather(*(call(toolset, who, "echo", n=2) for who in (ann, bob) * 3))

            assert [error_code(each) for each in several] == [None] * 6
            assert await toolset.faults() == {}


async def test_running_call_reports_forkserver_end_and_runs_once(tool: Path, tmp_path: Path) -> None:
    with somebody() as ann:
        async with open_toolset(tool, tmp_path) as toolset:
            client = Listening()
            running = asyncio.create_task(execute(toolset, request(ann, "waits", {}, client)))
            assert await becomes(lambda: len(client.notifications) > 0)

            os.kill(forkservers()[0], signal.SIGKILL)
            completed = await running

            assert error_code(completed) == "E_CRASHED"
            assert "forkserver" in completed.processed.value["results"]["error"]
            assert details(completed)["suggestion"].startswith("Call again")
            assert len(client.notifications) == 1


@pytest.mark.parametrize("is_believed", [False, True], ids=["held", "control"])
async def test_call_seen_by_its_worker_is_not_rerun(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_believed: bool
) -> None:
    if is_believed:
        # What the kernel says of a worker that has left its call unread.
        run = Lease.run

        async def believes(lease: Lease, *args: Any, **more: Any) -> Outcome:
            outcome = await run(lease, *args, **more)
            return replace(outcome, may_have_started=outcome.ending is not Ending.CRASHED)

        monkeypatch.setattr(Lease, "run", believes)
    with somebody() as ann:
        async with open_toolset(tool, tmp_path, worker_reuse="user") as toolset:
            assert error_code(await call(toolset, ann, "lurks")) is None

            code = error_code(await call(toolset, ann, "runs"))
            counted = await call(toolset, ann, "runs")

    assert code == (None if is_believed else "E_CRASHED")
    assert counted.processed.value["results"] == "ran\n" * (3 if is_believed else 2)


async def test_home_survives_zygote_ending_with_forkserver(
    tool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with somebody() as ann:
        async with open_toolset(tool, tmp_path) as toolset:
            assert error_code(await call(toolset, ann, "leave")) is None
            await kill_forkserver(caplog)

            looked = await call(toolset, ann, "look")

            assert error_code(looked) is None
            assert "here" in str(looked.processed.value["results"])


async def test_non_call_requests_continue_after_forkserver_end(
    tool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with somebody() as ann:
        async with open_toolset(tool, tmp_path) as toolset:
            await kill_forkserver(caplog)
            tool_call = request(ann, "echo", {})
            tool_call = replace(tool_call, method="tools/list", params={"_meta": tool_call.params["_meta"]})

            listed = await relay(toolset, tool_call)

            assert len(listed["tools"]) == 6


async def test_zygotes_of_earlier_users_return_automatically(
    tool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with somebody() as ann:
        async with open_toolset(tool, tmp_path) as toolset:
            await call(toolset, ann, "leave")
            before = zygotes()

            first = await kill_forkserver(caplog)

            assert await becomes(lambda: first not in forkservers() and len(zygotes()) == len(before) == 2)


async def test_unloadable_tool_file_is_a_fault_until_it_loads(tool: Path, tmp_path: Path) -> None:
    with somebody() as ann, somebody() as bob:
        async with open_toolset(tool, tmp_path) as toolset:
            assert error_code(await call(toolset, ann, "leave")) is None
            assert await toolset.faults() == {}
            tool.write_text("raise ValueError('broken')")

            assert error_code(await call(toolset, bob, "leave")) == "E_TOOL"

            assert await becomes(lambda: toolset.load_check.fault is not None)
            assert "broken" in (await toolset.faults())["tools"]
            tool.write_text(TOOL)
            assert await becomes(lambda: toolset.load_check.fault is None)
            assert error_code(await call(toolset, bob, "leave")) is None
