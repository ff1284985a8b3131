"""`runner reload` and SIGHUP: what changes while calls run, and that a broken file changes nothing."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from answer_parts import meta_of, structured_of
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from support import Ran, becomes, server_url

from runner.system.running_servers import RunningServer, one_at_a_time, running_in

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

Run = Callable[..., Ran]
ANN, BOB = "a" * 32, "b" * 32
TOOL = """
import asyncio, os
from fastmcp import Context, FastMCP

mcp = FastMCP("reloaded")


@mcp.tool
async def takes_until(name: str, username: str, ctx: Context) -> str:
    while not os.path.exists(name):
        await ctx.report_progress(1)
        await asyncio.sleep(0.1)
    return "done"


@mcp.tool
def key_length() -> int:
    return len(os.environ["API_KEY"])


@mcp.tool
def takes_memory(mib: int, username: str) -> int:
    return len(bytes([1]) * (mib << 20)) >> 20


@mcp.tool
async def writes(size: int, seconds: float, username: str) -> dict:
    with open("made.bin", "wb") as file:
        file.write(os.urandom(size))
    await asyncio.sleep(seconds)
    return {"results": "written", "artifacts": [{"name": "made.bin", "path": "made.bin"}]}
"""
BEHIND = """
import os, resource
from fastmcp import FastMCP

mcp = FastMCP("behind")


@mcp.tool
def most_memory() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


@mcp.tool
def end() -> None:
    os._exit(1)


mcp.run()
"""
CONFIG = """
max_calls_per_user = {most}
port = {port}

[auth]
kind = "static"
tokens_file = "tokens.json"

[secrets.API_KEY]
file = "api.key"
tools = ["key_length"]
"""


@pytest.fixture
def environment(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the usual variables with the configuration file named."""
    config = folder / "runner.toml"
    config.touch(0o600)
    return {**environment, "RUNNER_CONFIG": str(config)}


def write(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o600)


def configure(folder: Path, *, most: int = 1, port: int = 0, users: Sequence[str] = (ANN,), key: str) -> None:
    write(folder / "runner.toml", CONFIG.format(most=most, port=port))
    write(folder / "tokens.json", json.dumps({token: f"user-{token[0]}-of-reload" for token in users}))
    write(folder / "api.key", key)


@contextmanager
def serving(folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    (folder / "reloaded.py").write_text(TOOL)
    # The user of the tests is one of their own; here tokens say who calls.
    variables = {
        name: value for name, value in environment.items() if name not in ("RUNNER_USER", "RUNNER_PORT")
    }
    with started(folder, variables, ["serve", "--transport", "http", "reloaded.py"]) as found:
        yield found


@contextmanager
def started(
    folder: Path, environment: dict[str, str], words: Sequence[str]
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    command = [sys.executable, "-m", "runner", *words]
    with subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield server_url(process), process
        finally:
            process.kill()
            process.communicate()


def client(url: str, token: str, **more: Any) -> "Client[Any]":
    return Client(StreamableHttpTransport(url, headers={"Authorization": f"Bearer {token}"}), **more)


async def status(url: str, token: str) -> int:
    async with httpx2.AsyncClient(timeout=180) as http:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return (await http.post(url, headers=headers, json=message)).status_code


async def test_reload_applies_to_next_call_and_drains_calls_in_flight(
    run: Run, environment: dict[str, str], folder: Path
) -> None:
    configure(folder, key="first-value")
    started = asyncio.Event()

    async def progress(*_: object) -> None:
        started.set()

    with serving(folder, environment) as (url, _process):
        async with client(url, ANN, progress_handler=progress) as ann:
            first = (await ann.call_tool("key_length")).data
            assert await status(url, BOB) == 401
            under_way = asyncio.create_task(ann.call_tool("takes_until", {"name": "go-on"}))
            await started.wait()
            configure(folder, most=5, port=1, users=(BOB,), key="the-second-value")
            report = await asyncio.to_thread(run, "reload", "--json")
            # One at a time until now: the limit was raised while one runs.
            async with client(url, BOB) as bob:
                second = (await bob.call_tool("key_length")).data
            still_running = not under_way.done()
            Path("/tmp/user-a-of-reload/go-on").touch()
            done = (await under_way).data
            no_more = await status(url, ANN)

    assert (first, second, done) == (11, 16, "done")
    assert still_running
    assert no_more == 401
    (one,) = report.json
    assert report.status == 0
    assert one["error"] is None
    assert one["changed"] == [
        "max_calls_per_user = 5, was 1",
        "secret API_KEY",
        "tokens: 1 new, 1 gone, 0 of another user",
    ]
    assert one["restart"] == ["port = 1, was 0"]
    assert "second-value" not in report.out


def limit(folder: Path, **limits: int) -> None:
    configure(folder, key="first-value")
    config = folder / "runner.toml"
    lines = "".join(f"{name} = {value}\n" for name, value in limits.items())
    write(config, lines + config.read_text().replace("max_calls_per_user = 1\n", "max_calls_per_user = 5\n"))


async def code_of(client: "Client[Any]", tool: str, **arguments: Any) -> str | None:
    """Return the code of the error with which a call ends, or None for an answer."""
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    value = meta_of(result).get("toolcell/result") or structured_of(result)
    code: str | None = value["meta_data"].get("error_code") if "meta_data" in value else None
    assert result.is_error == (code is not None)
    return code


async def test_call_limits_raised_and_lowered_during_call(
    run: Run, environment: dict[str, str], folder: Path
) -> None:
    low = {"memory_mb": 200, "max_home_bytes": 1_000_000, "max_user_bytes": 1_000_000}
    high = {"memory_mb": 400, "max_home_bytes": 9_000_000, "max_user_bytes": 9_000_000}
    started = asyncio.Event()

    async def progress(*_: object) -> None:
        started.set()

    async def seen(ann: "Client[Any]", *, size: int = 2_000_000, lasts_s: float = 30) -> list[str | None]:
        return [
            await code_of(ann, "takes_memory", mib=250),
            # Long enough for a look at the home, which ends it.
            await code_of(ann, "writes", size=size, seconds=lasts_s),
        ]

    limit(folder, **low)
    with serving(folder, environment) as (url, _process):
        async with client(url, ANN, progress_handler=progress) as ann:
            before = await seen(ann)
            under_way = asyncio.create_task(ann.call_tool("takes_until", {"name": "go-on"}))
            await started.wait()
            limit(folder, **high)
            report = await asyncio.to_thread(run, "reload", "--json")
            beside = await code_of(ann, "takes_memory", mib=250)
            still_running = not under_way.done()
            Path("/tmp/user-a-of-reload/go-on").touch()
            done = (await under_way).data
            raised = await seen(ann, lasts_s=0)
            limit(folder, **{**high, "max_user_bytes": 1_000_000})
            await asyncio.to_thread(run, "reload")
            denied = await ann.call_tool("writes", {"size": 2_000_001, "seconds": 0}, raise_on_error=False)
            limit(folder, **low)
            await asyncio.to_thread(run, "reload")
            # A home that is above its limit may stay as full as it is.
            lowered = await seen(ann, size=4_000_000)

    (one,) = report.json
    assert set(one["changed"]) == {
        "memory_mb = 400, was 200",
        "max_home_bytes = 9000000, was 1000000",
        "max_user_bytes = 9000000, was 1000000",
    }
    assert (one["error"], one["restart"]) == (None, [])
    assert before == lowered == ["E_MEMORY", "E_QUOTA"]
    assert raised == [None, None]
    assert (beside, still_running) == (None, True)
    assert done == "done"
    assert "quota_exceeded" in json.dumps([denied.structured_content, denied.meta])


async def test_reload_of_broken_file_only_lowers_limits(
    run: Run, environment: dict[str, str], folder: Path
) -> None:
    limit(folder, memory_mb=300)
    with serving(folder, environment) as (url, _process):
        async with client(url, ANN) as ann:
            assert await code_of(ann, "takes_memory", mib=200) is None
            tool = folder / "reloaded.py"
            tool.write_text("broken =\n")
            limit(folder, memory_mb=100)
            report = await asyncio.to_thread(run, "reload", "--json")
            over = await code_of(ann, "takes_memory", mib=200)
            within = await code_of(ann, "takes_memory", mib=20)

            tool.write_text(TOOL)
            limit(folder, memory_mb=500)
            await asyncio.to_thread(run, "reload", "--json")
            # What could not be loaded is tried again before long.
            deadline = time.monotonic() + 120
            while (raised := await code_of(ann, "takes_memory", mib=350)) and time.monotonic() < deadline:
                await asyncio.sleep(1)

    (one,) = report.json
    assert one["changed"] == ["memory_mb = 100, was 300"]
    assert (over, within) == ("E_MEMORY", None)
    assert raised is None


async def test_reload_applies_upstream_limits_at_next_start(
    run: Run, environment: dict[str, str], folder: Path
) -> None:
    (folder / "behind.py").write_text(BEHIND)
    write(folder / "runner.toml", "memory_mb = 200\nport = 0\n")
    words = ["proxy", "--transport", "http", "--", sys.executable, "behind.py"]
    variables = {name: value for name, value in environment.items() if name != "RUNNER_PORT"}
    with started(folder, variables, words) as (url, process):
        async with Client(url) as caller:
            before = (await caller.call_tool("most_memory")).data
            write(folder / "runner.toml", "memory_mb = 300\nport = 0\n")
            report = await asyncio.to_thread(run, "reload", "--json", "--pid", str(process.pid))
            with contextlib.suppress(ToolError):
                await caller.call_tool("end")
            after = (await caller.call_tool("most_memory")).data

    (one,) = report.json
    assert one["changed"] == ["memory_mb = 300, was 200"]
    assert before // (1 << 20) < 300 < after // (1 << 20)


async def test_broken_config_changes_nothing_and_is_reported(
    run: Run, environment: dict[str, str], folder: Path
) -> None:
    configure(folder, key="first-value")

    with serving(folder, environment) as (url, process):
        write(folder / "tokens.json", "{ broken")
        broken_tokens = await asyncio.to_thread(run, "reload")
        configure(folder, most=7, users=(ANN, BOB), key="short")
        broken_secret = await asyncio.to_thread(run, "reload", "--pid", str(process.pid))
        configure(folder, users=(ANN, BOB), key="first-value")
        write(folder / "runner.toml", "max_cals = 3")
        broken_settings = await asyncio.to_thread(run, "reload")
        as_before = (await status(url, ANN), await status(url, BOB))
        async with client(url, ANN) as ann:
            length = (await ann.call_tool("key_length")).data
        state = Path(environment["RUNNER_STATE_DIR"])
        (server,) = running_in(state)
        os.kill(process.pid, signal.SIGHUP)
        assert await becomes(lambda: running_in(state)[0].reloads > server.reloads)
        by_signal = running_in(state)[0].outcome["error"]

    assert broken_tokens.status == broken_secret.status == 1
    assert "nothing changed\n  auth.tokens_file " in broken_tokens.out
    assert "api.key: the value has 5 characters" in broken_secret.out
    assert broken_settings.status == 2
    assert "there is no setting max_cals; did you mean max_calls?" in broken_settings.err
    assert "there is no setting max_cals; did you mean max_calls?" in by_signal
    assert as_before[0] != 401
    assert as_before[1] == 401
    assert length == len("first-value")


async def test_second_reload_command_waits_for_first(environment: dict[str, str], folder: Path) -> None:
    configure(folder, key="first-value")
    state = Path(environment["RUNNER_STATE_DIR"])
    command = [sys.executable, "-m", "runner", "reload"]

    with serving(folder, environment):
        configure(folder, most=7, key="first-value")
        with one_at_a_time(state, patience_s=0):
            second = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert await becomes(lambda: any(name.endswith("reload.lock") for name in open_files(second.pid)))
            # It could send its signal from here on, if it did not wait.
            (before,) = running_in(state)
        out, err = await asyncio.to_thread(second.communicate)

    assert before.reloads == 0
    assert second.returncode == 0, err
    assert "1 changes hold from now on" in out


def open_files(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(entry))
    return found


async def test_reload_without_server_says_so(run: Run) -> None:
    ran = await asyncio.to_thread(run, "reload")

    assert ran.status == 2
    assert "no server runs with the state folder" in ran.err


def test_control_file_of_killed_server_removed(tmp_path: Path) -> None:
    with RunningServer.open(tmp_path, what="it"):
        (running,) = running_in(tmp_path)
        left = running.path.with_name("1-left.json")
        left.write_bytes(running.path.read_bytes())

        assert [server.pid for server in running_in(tmp_path)] == [os.getpid()]
        assert not left.exists()

    assert running.again() is None
    assert running_in(tmp_path) == []
