"""`runner reload` and SIGHUP: what changes while calls run, and that a broken file changes nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from support import Ran, becomes, server_url

from runner.system.running_servers import RunningServer, running_in

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

Run = Callable[..., Ran]
ANN, BOB = "a" * 32, "b" * 32
TOOL = """
import asyncio, os
from fastmcp import Context, FastMCP

mcp = FastMCP("reloaded")


@mcp.tool
async def takes(seconds: float, ctx: Context) -> str:
    await ctx.report_progress(1)
    await asyncio.sleep(seconds)
    return "done"


@mcp.tool
def key_length() -> int:
    return len(os.environ["API_KEY"])
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
    command = [sys.executable, "-m", "runner", "serve", "--transport", "http", "reloaded.py"]
    # The user of the tests is one of their own; here tokens say who calls.
    told = {name: value for name, value in environment.items() if name not in ("RUNNER_USER", "RUNNER_PORT")}
    with subprocess.Popen(command, env=told, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield server_url(process), process
        finally:
            process.kill()
            process.communicate()


def client(url: str, token: str, **more: Any) -> "Client[Any]":
    return Client(StreamableHttpTransport(url, headers={"Authorization": f"Bearer {token}"}), **more)


async def status(url: str, token: str) -> int:
    async with httpx2.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return (await http.post(url, headers=headers, json=message)).status_code


async def test_what_changed_holds_from_the_next_call_on_and_calls_under_way_end_in_order(
    run: Run, environment: dict[str, str], folder: Path
) -> None:
    configure(folder, key="first-value")
    begun = asyncio.Event()

    async def progress(*_: object) -> None:
        begun.set()

    with serving(folder, environment) as (url, _process):
        async with client(url, ANN, progress_handler=progress) as ann:
            first = (await ann.call_tool("key_length")).data
            assert await status(url, BOB) == 401
            under_way = asyncio.create_task(ann.call_tool("takes", {"seconds": 8}))
            await begun.wait()
            configure(folder, most=5, port=1, users=(BOB,), key="the-second-value")
            told = await asyncio.to_thread(run, "reload", "--json")
            # One at a time until now: the limit was raised while one runs.
            async with client(url, BOB) as bob:
                second = (await bob.call_tool("key_length")).data
            still_running = not under_way.done()
            done = (await under_way).data
            no_more = await status(url, ANN)

    assert (first, second, done) == (11, 16, "done")
    assert still_running
    assert no_more == 401
    (one,) = told.json
    assert told.status == 0
    assert one["error"] is None
    assert one["changed"] == [
        "max_calls_per_user = 5, was 1",
        "secret API_KEY",
        "tokens: 1 new, 1 gone, 0 of another user",
    ]
    assert one["restart"] == ["port = 1, was 0"]
    assert "second-value" not in told.out


async def test_a_bound_of_requests_holds_from_the_next_request_on_and_what_is_open_stays_open(
    run: Run, environment: dict[str, str], folder: Path
) -> None:
    def bound(most: int) -> None:
        configure(folder, key="first-value")
        config = folder / "runner.toml"
        write(config, f"max_requests_per_user = {most}\n{config.read_text()}")

    bound(1)
    with serving(folder, environment) as (url, _process):
        events = url.removesuffix("/mcp") + "/events"
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {ANN}"}, timeout=60) as http,
            http.stream("GET", events) as open_stream,
        ):
            assert open_stream.status_code == 200
            before = await status(url, ANN)
            bound(2)
            told = await asyncio.to_thread(run, "reload", "--json")
            raised = await status(url, ANN)
            bound(1)
            await asyncio.to_thread(run, "reload")
            lowered = await status(url, ANN)

    (one,) = told.json
    assert one["changed"] == ["max_requests_per_user = 2, was 1"]
    assert one["restart"] == []
    assert before == lowered == 429
    assert raised != 429


async def test_a_broken_file_changes_nothing_and_is_said_in_a_sentence(
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


async def test_reload_says_that_no_server_runs(run: Run) -> None:
    ran = await asyncio.to_thread(run, "reload")

    assert ran.status == 2
    assert "no server runs with the state folder" in ran.err


def test_the_file_of_a_server_that_was_killed_is_removed(tmp_path: Path) -> None:
    with RunningServer.open(tmp_path, what="it"):
        (running,) = running_in(tmp_path)
        left = running.path.with_name("1-left.json")
        left.write_bytes(running.path.read_bytes())

        assert [server.pid for server in running_in(tmp_path)] == [os.getpid()]
        assert not left.exists()

    assert running.again() is None
    assert running_in(tmp_path) == []
