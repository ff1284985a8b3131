"""Jobs that tools leave running between calls, end to end: settings, calls, files, sessions."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from somebody import somebody
from support import TOOLS, Ran, alive, becomes, call, open_toolset, request

from runner.call import execute
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "works_on.py"


@asynccontextmanager
async def allowing(folder: Path, **settings: Any) -> AsyncIterator[Toolset]:
    async with open_toolset(FILE, folder, **{"background_jobs": True, **settings}) as toolset:
        yield toolset


async def result_of(toolset: Toolset, user: str, tool: str, *, session: str | None = None) -> Any:
    tool_call = request(user, tool, {})
    completed = await execute(toolset, replace(tool_call, user=User(user, session)))
    return completed.processed.value["results"]


def text_of(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


async def proceeds(file: Path) -> bool:
    # A file that is rewritten is empty at times.
    seen = {""}

    def changed() -> bool:
        seen.add(text_of(file))
        return len(seen) > 2

    return await becomes(changed)


async def comes_to_rest(file: Path) -> bool:
    for _ in range(100):
        before = text_of(file)
        await asyncio.sleep(0.2)
        if text_of(file) == before:
            return True
    return False


def goes_on(toolset: Toolset, user: str) -> bool:
    return toolset.has_jobs(User(user).segment)


async def worker_of(toolset: Toolset, user: str) -> int:
    """Return the one process in which something of a user goes on between calls."""
    caller = User(user)
    async with toolset.user_pool(caller, toolset.key(caller, access=HomeAccess.WRITE)) as user_pool:
        (job,) = user_pool.pool.zygote.jobs()
        return job.worker.pid


async def test_tasks_and_threads_continue_between_calls(tmp_path: Path) -> None:
    async with allowing(tmp_path) as toolset:
        with somebody() as user:
            home = toolset.homes.root / user
            assert await result_of(toolset, user, "start") == "started"

            assert await proceeds(home / "counted")
            assert await proceeds(home / "written")
            assert await result_of(toolset, user, "counted") > 0
            assert await proceeds(home / "counted")
            assert await proceeds(home / "written")


@pytest.mark.parametrize("allowed", [True, False])
async def test_result_states_whether_job_continues(tmp_path: Path, allowed: bool) -> None:
    async with allowing(tmp_path, background_jobs=allowed) as toolset:
        with somebody() as user:
            results = []
            for tool in ("counted", "start_quietly", "counted"):
                tool_call = request(user, tool, {})
                await execute(toolset, tool_call)
                results.append(tool_call.steps.goes_on)

    # The third call met the worker of the second.
    assert results == [None, allowed, True if allowed else None]


@pytest.mark.parametrize(
    "settings",
    [{"background_jobs": False}, {"tools": {"start": {"background_jobs": False}}}, {"worker_reuse": "call"}],
    ids=str,
)
async def test_jobs_frozen_without_operator_setting(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with allowing(tmp_path, **settings) as toolset:
            with somebody() as user:
                assert await result_of(toolset, user, "start") == "started"

                assert await comes_to_rest(toolset.homes.root / user / "written")
                assert not goes_on(toolset, user)

    records = [record for record in caplog.records if "background jobs" in record.getMessage()]
    assert "start" in vars(records[0])["tools"]


async def test_jobs_allowed_for_one_tool_by_operator(tmp_path: Path) -> None:
    tools = {"start_quietly": {"background_jobs": True}}
    async with allowing(tmp_path, background_jobs=False, tools=tools) as toolset:
        with somebody() as one, somebody() as other:
            await result_of(toolset, one, "start_quietly")
            await result_of(toolset, other, "start")

            assert (goes_on(toolset, one), goes_on(toolset, other)) == (True, False)


async def test_jobs_invisible_to_other_users(tmp_path: Path) -> None:
    async with allowing(tmp_path) as toolset:
        with somebody() as one, somebody() as other:
            await result_of(toolset, one, "start_quietly")

            assert await result_of(toolset, other, "counted") == 0
            assert await result_of(toolset, other, "start_quietly") == 1
            assert await result_of(toolset, one, "counted") == 1
            assert await worker_of(toolset, one) != await worker_of(toolset, other)


async def test_file_collected_while_writing_job_is_frozen(tmp_path: Path) -> None:
    async with allowing(tmp_path) as toolset:
        with somebody() as user:
            written = toolset.homes.root / user / "written"
            await result_of(toolset, user, "start")
            for _ in range(5):
                assert await proceeds(written)
                (file,) = (await call(toolset, user, "collect")).processed.files

                # Nine digits, or none yet, as it was at one moment.
                states = [b"", *(b"%09d" % number for number in range(200_000))]
                assert file.sha256 in {hashlib.sha256(state).hexdigest() for state in states}
            assert await proceeds(written)


async def test_fresh_worker_tool_leaves_no_running_job(tmp_path: Path) -> None:
    async with allowing(tmp_path) as toolset:
        with somebody() as user:
            assert [await result_of(toolset, user, "alone") for _ in range(2)] == [1, 1]
            assert not goes_on(toolset, user)


async def test_job_ends_when_client_ends_session(tmp_path: Path) -> None:
    async with allowing(tmp_path) as toolset:
        with somebody() as user:
            await result_of(toolset, user, "start", session="mine")
            worker = await worker_of(toolset, user)

            await toolset.end_session("another")
            assert alive(worker)
            await toolset.end_session("mine")
            assert await becomes(lambda: not alive(worker))


async def test_job_ends_when_user_idle_too_long(tmp_path: Path) -> None:
    async with allowing(tmp_path, session_idle_s=2.0) as toolset:
        with somebody() as user:
            await result_of(toolset, user, "start")
            worker = await worker_of(toolset, user)

            assert await becomes(lambda: not alive(worker))


async def test_job_ends_with_server(tmp_path: Path) -> None:
    with somebody() as user:
        async with allowing(tmp_path) as toolset:
            await result_of(toolset, user, "start")
            worker = await worker_of(toolset, user)
            assert alive(worker)

        assert await becomes(lambda: not alive(worker))


async def test_job_output_not_discarded_with_files_of_failed_call(tmp_path: Path) -> None:
    async with allowing(tmp_path, tools={"sleep": {"total_timeout_s": 3.0}}) as toolset:
        with somebody() as user:
            home = toolset.homes.root / user
            # Both begin before there is any file: two processes, of which one works on.
            late = asyncio.create_task(call(toolset, user, "sleep"))
            assert await becomes((home / "partial").exists)
            await result_of(toolset, user, "start")
            assert (await late).processed.failure is not None

            assert await proceeds(home / "written")


def test_check_reports_jobs_that_settings_forbid(run: Callable[..., Ran]) -> None:
    refused, allowed = (
        run("check", FILE, "--json"),
        run("check", FILE, "--json", RUNNER_BACKGROUND_JOBS="true"),
    )

    assert refused.json["background_refused"] == ["start", "start_quietly", "alone"]
    assert allowed.json["background_refused"] == []
    assert "needs `background_jobs = true` to go on between calls: start, start_quietly, alone" in (
        run("check", FILE).out
    )
