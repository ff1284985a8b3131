"""A request to a remote server on its ladder: notices while it is silent, then the end."""

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from runner.errors import CallError, Code
from runner.proxy.calls import watch
from runner.proxy.upstream import WatchedListener
from runner.steps.listener import CallListener
from runner.toolset.session_state import SessionState
from sandbox.deadlines import Deadlines

pytestmark = pytest.mark.anyio

PROGRESS = {"method": "notifications/progress", "params": {"progress": 1}}
LONG = Deadlines(idle_s=3000, total_s=3600)


class Slow:
    """A client that receives notifications slowly. A `runner.steps.listener.Client`."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.is_receiving = asyncio.Event()
        self.may_receive = asyncio.Event()
        self.may_receive.set()

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.is_receiving.set()
        await self.may_receive.wait()
        self.received.append(method)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.may_receive.set()
        return {"method": method}


def listening(client: Slow, deadlines: Deadlines) -> CallListener:
    params = {"_meta": {"progressToken": 1}}
    return CallListener(
        client=client,
        params=params,
        levels=frozenset(),
        deadlines=deadlines,
        user="u",
        state=SessionState(),
    )


async def for_ever(_watched: WatchedListener) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize(
    ("deadlines", "limit"),
    [(Deadlines(idle_s=0.02, total_s=600), "idle"), (Deadlines(idle_s=0.02, total_s=0.02), "total")],
)
async def test_silent_or_slow_request_ends(deadlines: Deadlines, limit: str) -> None:
    ended = asyncio.Event()

    async def act(watched: WatchedListener) -> dict[str, Any]:
        try:
            return await for_ever(watched)
        finally:
            ended.set()

    with pytest.raises(CallError) as raised:
        await watch(act, listening(Slow(), deadlines))

    assert raised.value.code is Code.E_TIMEOUT
    assert raised.value.details.get("limit", "idle") == limit
    assert ended.is_set()


async def test_answer_delivered_after_earlier_notifications() -> None:
    client = Slow()
    client.may_receive.clear()
    reporting: list[asyncio.Task[None]] = []

    async def act(watched: WatchedListener) -> dict[str, Any]:
        reporting.append(asyncio.create_task(watched.notify(PROGRESS)))
        await asyncio.sleep(0)
        return {"content": []}

    answer = asyncio.create_task(watch(act, listening(client, LONG)))
    answer.add_done_callback(lambda _: client.received.append("the answer"))
    await client.is_receiving.wait()
    # Turns of the loop, and no time: an answer that did not wait would need a few.
    for _ in range(100):
        await asyncio.sleep(0)
    client.may_receive.set()
    result = await answer
    await asyncio.sleep(0)

    assert result == {"content": []}
    assert client.received == ["notifications/progress", "the answer"]


async def test_cancelled_waiter_ends_request_without_leftovers() -> None:
    before = asyncio.all_tasks()
    call = asyncio.create_task(watch(for_ever, listening(Slow(), LONG)))
    await asyncio.sleep(0)

    call.cancel()
    await asyncio.wait({call})

    assert call.cancelled()
    assert asyncio.all_tasks() == before


async def test_outer_time_limit_not_taken_for_ours() -> None:
    with anyio.move_on_after(0.01) as scope:
        await watch(for_ever, listening(Slow(), LONG))

    assert scope.cancelled_caught


async def test_failure_is_raised_unchanged() -> None:
    async def act(_watched: WatchedListener) -> dict[str, Any]:
        raise CallError(Code.E_CRASHED, "it crashed")

    with pytest.raises(CallError, match="it crashed"):
        await watch(act, listening(Slow(), LONG))
