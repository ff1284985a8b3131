"""Threads and cancellation: no descriptor is closed under a thread that still uses it."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runner.system.threads import in_thread, run_in_thread

pytestmark = pytest.mark.anyio


async def test_cancelled_caller_waits_for_its_thread() -> None:
    started, go, events = threading.Event(), threading.Event(), []

    def work() -> None:
        started.set()
        go.wait(60)
        events.append("finished")

    async def caller() -> None:
        try:
            await run_in_thread(work)
        finally:
            events.append("closed")

    task = asyncio.create_task(caller())
    await asyncio.to_thread(started.wait, 60)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    still_waiting = not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert still_waiting
    assert events == ["finished", "closed"]


async def test_result_and_error_are_returned() -> None:
    assert await run_in_thread(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await run_in_thread(int, "x")


async def test_context_entered_by_cancelled_caller_is_exited() -> None:
    started, go, events = threading.Event(), threading.Event(), []

    @contextmanager
    def slow() -> Iterator[int]:
        started.set()
        go.wait(60)
        fd = os.open("/dev/null", os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)
            events.append("left")

    async def caller() -> None:
        async with in_thread(slow()):
            events.append("entered")

    task = asyncio.create_task(caller())
    await asyncio.to_thread(started.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert events == ["left"]


async def test_error_in_block_reaches_context_manager_and_caller() -> None:
    seen: list[str] = []

    @contextmanager
    def watching() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            seen.append(str(error))
            raise

    with pytest.raises(KeyError):
        async with in_thread(watching()):
            raise KeyError("a")

    assert seen == ["'a'"]
