"""Calls that a client on stdio has no answer to yet."""

import asyncio

import pytest
from mcp_types import JSONRPCNotification, JSONRPCRequest

from runner.protocol.stdio import Unanswered

pytestmark = pytest.mark.anyio

LONG_S = 300


def request(number: int | str, method: str = "tools/call") -> JSONRPCRequest:
    return JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params={})


async def is_waiting(task: "asyncio.Task[None]") -> bool:
    done, _ = await asyncio.wait({task}, timeout=0.05)
    return not done


@pytest.mark.parametrize("request_id", ["1", 1], ids=["text", "number"])
async def test_call_waited_for_until_answered(request_id: str | int) -> None:
    unanswered = Unanswered()
    unanswered.received(request(1))
    unanswered.received(request(2))
    waiting = asyncio.create_task(unanswered.none(LONG_S))
    unanswered.answered(2)
    waited = await is_waiting(waiting)

    unanswered.answered(request_id)

    await asyncio.wait_for(waiting, 60)
    assert waited


async def test_cancelled_call_not_waited_for() -> None:
    unanswered = Unanswered()
    unanswered.received(request("a"))
    waiting = asyncio.create_task(unanswered.none(LONG_S))
    waited = await is_waiting(waiting)

    params = {"requestId": "a"}
    unanswered.received(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params))

    await asyncio.wait_for(waiting, 60)
    assert waited


async def test_unanswered_wait_ignores_subscriptions_and_times_out() -> None:
    unanswered = Unanswered()
    unanswered.received(request(1, "subscriptions/listen"))

    await asyncio.wait_for(unanswered.none(LONG_S), 60)

    unanswered.received(request(2))
    await asyncio.wait_for(unanswered.none(0.01), 60)
