"""Calls that share a worker: the end of one, in any way, costs the others nothing."""

import asyncio
import os
import signal
import time

import pytest
from pools import Ears
from support import becomes

from sandbox.deadlines import Deadlines
from sandbox.host.lease import Lease
from sandbox.host.pool import Pool
from sandbox.host.stopping import is_stopped
from sandbox.outcome import Ending, Outcome

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

DEADLINES = Deadlines(idle_s=20.0, total_s=60.0)


@pytest.fixture(scope="module")
def program() -> str:
    return "together"


async def leased(pool: Pool) -> Lease:
    return await pool.lease(pool.policy.limits, keeps=True, shares=True)


async def run(lease: Lease, act: str, *, ears: Ears | None = None, padding: int = 0) -> Outcome:
    call = {"act": act, "padding": "x" * padding}
    try:
        outcome = await lease.run(call, deadlines=DEADLINES, listener=ears or Ears())
        await lease.at_rest()
    finally:
        await lease.abandon()
    return outcome


async def start(pool: Pool, act: str) -> tuple[Lease, "asyncio.Task[Outcome]"]:
    """Begin a call, and return once the worker serves it."""
    lease, ears = await leased(pool), Ears()
    task = asyncio.create_task(run(lease, act, ears=ears))
    await ears.called.wait()
    return lease, task


async def cancelled(task: "asyncio.Task[Outcome]") -> None:
    task.cancel()
    await asyncio.wait({task})


async def test_call_leased_before_a_crash_has_not_begun(pool: Pool) -> None:
    first, running = await start(pool, "hold")
    second, third = await leased(pool), await leased(pool)
    assert second.worker is third.worker is first.worker
    assert (await run(third, "answer")).answer == {"pid": first.worker.pid}

    os.kill(first.worker.pid, signal.SIGKILL)
    assert (await running).ending is Ending.CRASHED
    # What other files have by now is not the worker's, though their numbers may be.
    reader, writer = os.pipe()
    os.write(writer, b"of another user")
    late = await run(second, "answer")

    assert (late.ending, late.may_have_started, late.output) == (Ending.CRASHED, False, "")
    assert os.read(reader, 100) == b"of another user"
    for each in (reader, writer):
        os.close(each)
    assert (await run(await leased(pool), "answer")).ending is Ending.ANSWERED


async def test_call_begun_after_another_rested_is_served(pool: Pool) -> None:
    first = await leased(pool)
    assert (await first.run({"act": "answer"}, deadlines=DEADLINES, listener=Ears())).answer
    second = await leased(pool)
    await first.at_rest()
    assert is_stopped(first.worker.pid)
    first.release()

    assert (await run(second, "answer")).answer == {"pid": first.worker.pid}


async def test_second_call_at_rest_waits_until_the_worker_stands(pool: Pool) -> None:
    _, running = await start(pool, "hold")
    leases = [await leased(pool) for _ in range(2)]
    for lease in leases:
        await lease.run({"act": "answer"}, deadlines=DEADLINES, listener=Ears())
    pid = leases[0].worker.pid
    stood = []

    async def rested(lease: Lease) -> None:
        await lease.at_rest()
        stood.append(is_stopped(pid))

    assert not is_stopped(pid)
    await asyncio.gather(*map(rested, leases))
    assert stood == [True, True]
    for lease in leases:
        lease.release()
    assert await becomes(lambda: not is_stopped(pid))
    await cancelled(running)


async def test_half_sent_cancelled_call_ends_alone(pool: Pool) -> None:
    lease, running = await start(pool, "hold")
    half = asyncio.create_task(run(await leased(pool), "hold", padding=30_000_000))
    # Until it waits for the worker to read the rest.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancelled(half)

    assert not running.done()
    assert lease.worker.is_running()
    await cancelled(running)


@pytest.mark.parametrize("act", ["long", "floods"])
async def test_cancelled_call_still_sending_blocks_no_loop(pool: Pool, act: str) -> None:
    _, running = await start(pool, "hold")
    _, sender = await start(pool, act)
    before = time.thread_time()
    await cancelled(sender)
    # Processor time of this thread: that of others on a busy machine does not count.
    assert time.thread_time() - before < 0.25
    await cancelled(running)
