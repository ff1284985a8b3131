"""Descriptors of the host: users share few of them, and a shortage loses no files or calls."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from process_tree import zygotes
from support import ROOT, TOOLS, becomes, call, details, environment_in, error_code, open_toolset

from runner.toolset import pool_maker
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User
from sandbox.host import descriptors

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

CROWD = TOOLS / "crowd.py"


@contextmanager
def spare(count: int) -> Iterator[None]:
    """Let this process open so many descriptors more than are kept free for what cannot wait."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (descriptors.open_now() + count) * 8 // 7
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def crowd(count: int) -> list[str]:
    mark = uuid.uuid4().hex[:8]
    return [f"t-{mark}-{number}" for number in range(count)]


def value(completed: Any) -> Any:
    return completed.processed.value["results"]


async def test_home_and_session_outlive_released_workers(tmp_path: Path, user: str) -> None:
    async with open_toolset(CROWD, tmp_path) as toolset:
        await call(toolset, user, "keep", text="kept")
        await call(toolset, user, "remember", value=7)
        released = [toolset.make_room() for _ in range(3)]
        zygotes_gone = await becomes(lambda: not zygotes())
        found = value(await call(toolset, user, "files"))
        recalled = value(await call(toolset, user, "recall"))
        in_use = (await toolset.gauges()).user_pools

    assert released == [True, True, False]
    assert zygotes_gone
    assert (found, recalled) == (["kept"], 7)
    assert in_use == 2
    assert not Path("/tmp", user).exists()


async def test_home_outlives_zygote_that_exits(tmp_path: Path, user: str) -> None:
    async with open_toolset(CROWD, tmp_path) as toolset:
        await call(toolset, user, "keep", text="kept-1")
        caller = User(user)
        async with toolset.user_pool(caller, toolset.key(caller, access=HomeAccess.WRITE)) as user_pool:
            os.kill(user_pool.pool.zygote.pid, 9)
        assert await becomes(lambda: not user_pool.pool.alive)
        found = value(await call(toolset, user, "keep", text="kept-2"))

    assert found == ["kept-1", "kept-2"]


async def several(toolset: Toolset, users: list[str], each: int) -> list[Any]:
    made = [call(toolset, user, "keep", text=f"kept-{n}") for n in range(each) for user in users]
    return list(await asyncio.gather(*made))


async def test_more_users_than_descriptors_all_get_answers(tmp_path: Path) -> None:
    users = crowd(8)
    async with open_toolset(CROWD, tmp_path, max_calls=4) as toolset:
        # Each has a home, whose lease stays: three descriptors.
        with spare(3 * len(users) + 45):
            answers = await several(toolset, users, each=3)
            most = (await toolset.gauges()).user_pools
        then = [value(await call(toolset, user, "files")) for user in users]

    assert [error_code(answer) for answer in answers] == [None] * 24
    assert then == [["kept-0", "kept-1", "kept-2"]] * 8
    assert most < 8


@pytest.mark.parametrize("spare_memory", [False, True])
async def test_low_memory_idle_users_lose_workers_keep_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spare_memory: bool
) -> None:
    monkeypatch.setattr(pool_maker, "has_memory_to_spare", lambda: spare_memory)
    users = crowd(4)
    async with open_toolset(CROWD, tmp_path) as toolset:
        first = [error_code(await call(toolset, user, "keep", text="kept-0")) for user in users]
        alive = (await toolset.gauges()).user_pools
        then = [value(await call(toolset, user, "files")) for user in users]

    assert first == [None] * 4
    assert then == [["kept-0"]] * 4
    # With memory to spare all stay.
    assert (alive >= 4) is spare_memory


async def test_no_descriptors_to_reclaim_call_gets_busy_error(tmp_path: Path, user: str) -> None:
    """The control of the test before it."""
    other = User(f"{user}-b")
    async with open_toolset(CROWD, tmp_path) as toolset:
        async with toolset.user_pool(other, toolset.key(other)):
            with spare(5):
                refused = await call(toolset, user, "files")
        answered = await call(toolset, user, "files")

    assert error_code(refused) == "E_BUSY"
    assert details(refused)["limit"] == "file descriptors"
    assert "ulimit -Hn" in details(refused)["suggestion"]
    assert details(refused)["retry_after_seconds"] == 5
    assert error_code(answered) is None


def test_server_raises_descriptor_limit_workers_keep_own(tmp_path: Path, user: str) -> None:
    def with_few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 3000))

    environment = {
        **environment_in(tmp_path),
        "RUNNER_USER": user,
        "RUNNER_OPEN_FILES": "200",
        "PYTHONPATH": str(ROOT),
    }
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "open_files", "arguments": {}, "_meta": meta}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) + "\n"
    with subprocess.Popen(
        [sys.executable, "-m", "runner", "serve", str(CROWD), "--transport", "stdio"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=with_few,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        of_host = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)

    assert of_host == (3000, 3000)
    soft, hard = answer["result"]["structuredContent"]["result"]
    assert soft <= 300
    assert hard <= 300
