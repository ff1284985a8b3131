"""Every way a call can end, each in one toolset that serves the next call all the same."""

import asyncio
import fcntl
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from somebody import somebody
from support import TOOLS, Listening, call, details, error_code, held, open_toolset, request
from tools.acts import WAYS_TO_STAY

from runner.call import execute
from runner.homes.scratch import scratch_folder
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


# Their calls do not end by time, so they get enough of it on a busy machine too.
UNHURRIED = ("fine", "marks", "survivors", "exits", "dies", "eats", "floods", "writes_garbage")


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    tools = {name: {"idle_timeout_s": 60.0, "total_timeout_s": 60.0} for name in UNHURRIED}
    tools["chatty"] = {"total_timeout_s": 8.0}
    folder = tmp_path_factory.mktemp("ends")
    async with open_toolset(
        TOOLS / "ends.py", folder, tools=tools, idle_timeout_s=1.0, total_timeout_s=3.0, memory_mb=96
    ) as it:
        yield it


@pytest.fixture(scope="module")
def user() -> Iterator[str]:
    """One for this whole file: the zygote of a user takes longer than all else that a test here does."""
    with somebody() as name:
        yield name


SUGGESTION = "Consider breaking large operations into smaller chunks or using progress reporting"


async def fine(toolset: Toolset, user: str) -> bool:
    return (await call(toolset, user, "fine")).processed.value == {"results": "fine"}


class Deaf(Listening):
    """A client that never takes what it is told."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await super().notify(method, params)
        await anyio.sleep_forever()


async def test_client_that_reads_nothing_frees_place_after_call(toolset: Toolset, user: str) -> None:
    deaf = Deaf()

    completed = await execute(toolset, request(user, "sleeps", {}, deaf))

    assert error_code(completed) == "E_TIMEOUT"
    assert deaf.notifications


@pytest.mark.parametrize("tool", ["sleeps", "loops", "holds", "stubborn"])
async def test_silent_tool_ends_at_its_limit_in_any_state(toolset: Toolset, user: str, tool: str) -> None:
    """Source: S1-121 and S1-124."""
    completed = await call(toolset, user, tool)

    assert completed.processed.value == {
        "results": {"error": "Tool execution timed out after 1 seconds"},
        "retryable": True,
        "meta_data": {
            "is_error": True,
            "reason": "ExecutionTimeout",
            "error_code": "E_TIMEOUT",
            "details": {
                "timeout_seconds": 1,
                "last_progress": None,
                "suggestion": SUGGESTION,
            },
            "retryable": True,
        },
    }
    assert await fine(toolset, user)


async def test_progress_keeps_call_alive_beyond_idle_limit(toolset: Toolset, user: str) -> None:
    client = Listening()

    completed = await execute(toolset, request(user, "chatty", {"seconds": 1.6}, client))

    assert str(completed.processed.value["results"]).startswith("reported")
    assert len([method for method, _ in client.notifications if method == "notifications/progress"]) > 10


async def test_progress_does_not_move_total_limit(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "chatty", seconds=60)

    assert error_code(completed) == "E_TIMEOUT"
    assert details(completed)["limit"] == "total"
    assert details(completed)["timeout_seconds"] == 8
    assert str(details(completed)["last_progress"]).startswith("report ")


async def test_client_notified_of_ended_call(toolset: Toolset, user: str) -> None:
    """Source: S1-122."""
    client = Listening()

    await execute(toolset, request(user, "sleeps", {}, client))

    texts = [params["message"] for _method, params in client.notifications]
    assert texts == [
        "Tool failed to respond in a reasonable amount of time. Please try again or use a smaller dataset."
    ]


async def test_partial_files_of_ended_call_discarded(toolset: Toolset, newcomer: str) -> None:
    """Source: S1-123."""
    home = Path(f"/tmp/{newcomer}")
    with toolset.homes.lease(newcomer):
        (home / "earlier.txt").write_text("kept")
        completed = await call(toolset, newcomer, "leaves_partial")
        files = sorted(path.name for path in home.iterdir() if path.is_file())

    assert error_code(completed) == "E_TIMEOUT"
    assert files == ["earlier.txt"]


async def test_descendants_dead_when_call_has_ended(toolset: Toolset, newcomer: str) -> None:
    with toolset.homes.lease(newcomer):
        completed = await call(toolset, newcomer, "survivors")
        marks = {way: Path(f"/tmp/{newcomer}/{way}") for way in WAYS_TO_STAY}
        made = [mark.exists() for mark in marks.values()]
        living = [way for way, mark in marks.items() if held(mark)]

    assert completed.processed.value["results"] == "left"
    assert made == [True] * len(WAYS_TO_STAY)
    assert living == []


async def test_cancelled_call_leaves_nothing_running(toolset: Toolset, newcomer: str) -> None:
    mark = Path(f"/tmp/{newcomer}/mark")

    async with anyio.create_task_group() as group:
        group.start_soon(partial(call, toolset, newcomer, "marks"))
        while not held(mark):
            await anyio.sleep(0.01)
        # Kept open: what a cancelled call has made may be discarded.
        open_file = mark.open("rb")
        group.cancel_scope.cancel()
    async with toolset.user_pool(
        User(newcomer), toolset.key(User(newcomer), access=HomeAccess.WRITE)
    ) as user_pool:
        await user_pool.pool.zygote.settled()

    with open_file:
        # A living process still holds it.
        fcntl.flock(open_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert await fine(toolset, newcomer)


async def test_toolset_closed_during_folder_creation_leaves_none(
    newcomer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closing = threading.Event(), threading.Event()
    scratches: list[Path] = []

    @contextmanager
    def slow(homes: Path, *, owner: int | None) -> Iterator[Path]:
        with scratch_folder(homes, owner=owner) as folder:
            scratches.append(folder)
            made.set()
            assert closing.wait(60)
            yield folder

    async with open_toolset(TOOLS / "ends.py", tmp_path) as toolset:
        monkeypatch.setattr("runner.toolset.policies.scratch_folder", slow)
        calling = asyncio.create_task(call(toolset, newcomer, "marks"))
        assert await asyncio.to_thread(made.wait, 60)
        calling.cancel()
        # The folder is handed over only when its maker has been cancelled.
        asyncio.get_running_loop().call_later(0.1, closing.set)

    assert len(scratches) == 1
    assert not scratches[0].exists()


async def test_exiting_worker_is_crash_with_last_output(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "exits", status=3)

    assert error_code(completed) == "E_CRASHED"
    assert details(completed)["status"] == "exit status 3"
    assert details(completed)["output"] == "last words\n"
    assert await fine(toolset, user)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
async def test_worker_killed_by_signal_is_crash(toolset: Toolset, user: str, name: str) -> None:
    completed = await call(toolset, user, "dies", number=int(signal.Signals[name]))

    assert error_code(completed) == "E_CRASHED"
    assert details(completed)["status"] == f"signal {name}"
    assert await fine(toolset, user)


async def test_tool_above_memory_limit_gets_memory_error(toolset: Toolset, user: str) -> None:
    enough = await call(toolset, user, "eats", megabytes=32)
    too_much = await call(toolset, user, "eats", megabytes=2048)

    assert enough.processed.value == {"results": "32"}
    assert error_code(too_much) == "E_MEMORY"
    assert details(too_much)["limit_bytes"] == 96 * 1024 * 1024
    assert await fine(toolset, user)


async def test_output_flood_neither_blocks_nor_fills_host(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "floods", megabytes=16)

    assert completed.processed.value == {"results": "flooded"}


async def test_garbage_for_frames_is_invalid_result(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "writes_garbage")

    assert error_code(completed) == "E_INVALID_RESULT"
    assert details(completed)["where"] == "frame"
    assert await fine(toolset, user)


async def test_unknown_tool_answered_with_nearest_names(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "sleps")

    assert error_code(completed) == "E_TOOL_NOT_FOUND"
    assert "sleeps" in details(completed)["nearest"]


async def test_wrong_arguments_error_names_argument(toolset: Toolset, user: str) -> None:
    completed = await call(toolset, user, "exits", status="many")

    assert error_code(completed) == "E_INVALID_ARGUMENT"
    assert details(completed)["argument"] == "status"


async def test_zygote_exit_before_worker_call_gets_next_zygote(tmp_path: Path, user: str) -> None:
    # No worker stays, or the call would have that one.
    async with open_toolset(TOOLS / "ends.py", tmp_path, worker_reuse="call") as it:
        assert await fine(it, user)
        async with it.user_pool(User(user), it.key(User(user), access=HomeAccess.NONE)) as user_pool:
            zygote = user_pool.pool.zygote
            while zygote.idle > zygote.at_hand:
                await anyio.sleep(0.01)
            # It takes no order any more, and its spare workers are taken, so the call waits for one.
            os.kill(zygote.pid, signal.SIGSTOP)
            spare = [await zygote.take() for _ in range(zygote.at_hand)]
        async with anyio.create_task_group() as group:
            answers: list[bool] = []

            async def ask() -> None:
                answers.append(await fine(it, user))

            group.start_soon(ask)
            while not zygote.idle:
                await anyio.sleep(0.01)
            os.kill(zygote.pid, signal.SIGKILL)
        for worker in spare:
            worker.close()

    assert answers == [True]
