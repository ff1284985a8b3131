"""The end of a server while calls run."""

import asyncio

import pytest

from runner.errors import CallError, Code
from runner.toolset.drain import Drain

pytestmark = pytest.mark.anyio


async def test_second_stop_waits_for_call_that_cleans_up() -> None:
    drain, is_ending, may_end = Drain(), asyncio.Event(), asyncio.Event()

    async def tell(_text: str) -> None:
        """Ignore the notice."""

    async def call() -> None:
        async with drain.call(tell):
            try:
                await asyncio.Event().wait()
            finally:
                is_ending.set()
                await may_end.wait()

    running = asyncio.create_task(call())
    await asyncio.sleep(0)
    drain.begin(0.01)
    await is_ending.wait()

    drain.begin(0)
    may_end.set()
    with pytest.raises(CallError) as ended:
        await running

    assert ended.value.code is Code.E_CANCELLED
    await drain.done()
