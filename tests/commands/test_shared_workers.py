"""Calls of one user at once in one worker: state, cancellation, crashes and denials of each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from somebody import somebody
from support import TOOLS, Listening, call, details, error_code, open_toolset, request

from runner.call import Completed, execute
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "joins.py"


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    async with open_toolset(FILE, tmp_path_factory.mktemp("joins"), worker_reuse="shared") as it:
        yield it


def results(completed: Completed) -> Any:
    return completed.processed.value["results"]


async def value(toolset: Toolset, user: str, tool: str, **arguments: Any) -> Any:
    return results(await call(toolset, user, tool, **arguments))


async def inside(toolset: Toolset, user: str, name: str) -> Any:
    """Return what `inside` does, once a name is in its list."""
    while name not in (found := await value(toolset, user, "inside"))["inside"]:
        await asyncio.sleep(0)
    return found


async def test_concurrent_calls_served_by_one_process(toolset: Toolset, tmp_path: Path) -> None:
    with somebody() as user:
        results = await asyncio.gather(
            *(value(toolset, user, "meet", name=name, others=4) for name in ("a", "b", "c", "d"))
        )
        assert results == [{"pid": results[0]["pid"], "met": ["a", "b", "c", "d"]}] * 4
        assert await value(toolset, user, "alone") != results[0]["pid"]
    async with open_toolset(FILE, tmp_path, worker_reuse="user") as apart:
        with somebody() as user:
            missed = [value(apart, user, "meet", name=name, others=2, patience_s=6) for name in ("a", "b")]
            assert len({each["pid"] for each in await asyncio.gather(*missed)}) == 2


async def test_cancelled_call_ends_alone_and_in_order(toolset: Toolset) -> None:
    with somebody() as user:
        clients = [Listening(), Listening()]
        stays, goes = (
            asyncio.create_task(execute(toolset, request(user, "hold", {"sign": sign}, client)))
            for sign, client in zip(("stays", "goes"), clients, strict=True)
        )
        await inside(toolset, user, "stays")
        before = await inside(toolset, user, "goes")
        goes.cancel()
        after = await inside(toolset, user, "goes ended")
        await value(toolset, user, "let_go")

        assert (results(await stays), before["pid"]) == ("stays", after["pid"])
        received = [params for client in clients for _, params in client.notifications]
        assert [params["message"] for params in received] == ["stays", "goes"]


async def test_leftover_thread_costs_no_other_call(toolset: Toolset) -> None:
    with somebody() as user:
        stays = asyncio.create_task(call(toolset, user, "hold", sign="stays"))
        goes = asyncio.create_task(call(toolset, user, "hold_thread"))
        before = await inside(toolset, user, "stays")
        await inside(toolset, user, "thread")
        goes.cancel()
        await asyncio.wait({goes})
        fresh = await value(toolset, user, "inside")
        stays.cancel()

        assert (fresh["pid"] != before["pid"], fresh["inside"]) == (True, [])


async def test_crash_reported_to_each_call_as_retryable(toolset: Toolset) -> None:
    with somebody() as user:
        beside = asyncio.create_task(call(toolset, user, "hold", sign="beside"))
        await inside(toolset, user, "beside")
        crashed = await call(toolset, user, "crash")
        ended = [crashed, await beside]

        assert [error_code(each) for each in ended] == ["E_CRASHED", "E_CRASHED"]
        assert [each.processed.value["retryable"] for each in ended] == [True, True]
        assert all("served 2 calls at once" in str(results(each)) for each in ended)
        assert all("Call again" in details(each)["suggestion"] for each in ended)


async def test_damaged_process_replaced_for_next_call(toolset: Toolset) -> None:
    with somebody() as user:
        damaged = await call(toolset, user, "damage")

        assert error_code(damaged) == "E_CRASHED"
        assert "NameError" in str(damaged.processed.value)
        assert (await value(toolset, user, "inside"))["inside"] == []


async def test_denial_belongs_to_call_that_caused_it(toolset: Toolset) -> None:
    with somebody() as user:
        denied, allowed = await asyncio.gather(
            call(toolset, user, "read", path="/etc/shadow", others=2),
            call(toolset, user, "read", path=str(FILE), others=2),
        )
        assert results(denied).endswith("Error")
        assert [denial["path"] for denial in denied.processed.value["meta_data"]["denials"]] == [
            "/etc/shadow"
        ]
        assert results(allowed) == FILE.read_text()
        assert "denials" not in allowed.processed.value.get("meta_data", {})
