import anyio
import pytest

from runner.errors import CallError, Code
from runner.settings.named_limits import Counted, LimitSettings
from runner.toolset.admission import Admission, FairQueue, inside_place

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


class Calls:
    """Holds places and notes who got one."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.running: list[str] = []
        self.leave: dict[str, anyio.Event] = {}

    async def run(self, name: str) -> None:
        self.leave[name] = anyio.Event()
        async with self.admission.admit(name.split("-")[0]):
            self.running.append(name)
            await self.leave[name].wait()
            self.running.remove(name)


async def test_user_at_limit_delays_no_other() -> None:
    calls = Calls(Admission(FairQueue(max_calls=3, max_calls_per_user=2, max_queue=10)))

    async with anyio.create_task_group() as group:
        for name in ("ann-1", "ann-2", "ann-3", "bob-1"):
            group.start_soon(calls.run, name)
            await settle()
        first = sorted(calls.running)
        calls.leave["ann-1"].set()
        await settle()
        second = sorted(calls.running)
        group.cancel_scope.cancel()

    assert first == ["ann-1", "ann-2", "bob-1"]
    assert second == ["ann-2", "ann-3", "bob-1"]


def one_at_a_time(*, queue: int) -> Admission:
    return Admission(FairQueue(max_calls=1, max_calls_per_user=1, max_queue=queue))


async def test_full_queue_is_busy_with_retry_time() -> None:
    calls = Calls(one_at_a_time(queue=1))

    async with anyio.create_task_group() as group:
        for name in ("ann-1", "bob-1"):
            group.start_soon(calls.run, name)
            await settle()
        with pytest.raises(CallError) as refused:
            await calls.run("bob-2")
        group.cancel_scope.cancel()

    error = refused.value
    assert error.code is Code.E_BUSY
    assert (error.details["limit"], error.details["setting"], error.details["value"]) == (
        "waiting calls",
        "max_calls",
        1,
    )
    assert error.details["retry_after_seconds"] == 5


async def test_user_filling_shared_queue_yields_to_another() -> None:
    admission = one_at_a_time(queue=3)
    calls = Calls(admission)
    refused: list[str] = []

    async def run(name: str) -> None:
        try:
            await calls.run(name)
        except CallError as error:
            refused.append(f"{name} {error.details['limit']}")

    async with anyio.create_task_group() as group:
        for name in ("ann-1", "ann-2", "ann-3", "ann-4", "bob-1", "ann-5"):
            group.start_soon(run, name)
            await settle()
        for name in ("ann-1", "bob-1"):
            calls.leave[name].set()
            await settle()
        running = list(calls.running)
        group.cancel_scope.cancel()

    assert refused == ["ann-4 waiting calls", "ann-5 waiting calls"]
    assert running == ["ann-2"]


async def test_call_cancelled_while_yielding_returns_no_unowned_place() -> None:
    calls = Calls(one_at_a_time(queue=2))

    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, "ann-1")
        await settle()
        group.start_soon(calls.run, "bob-1")
        await settle()
        with anyio.CancelScope() as impatient:
            async with anyio.create_task_group() as others:
                others.start_soon(calls.run, "bob-2")
                await settle()
                impatient.cancel()
                # Cancelled, and not yet told of it, as another user takes the place in the queue.
                group.start_soon(calls.run, "eve-1")
        await settle()
        running = list(calls.running)
        for name in ("ann-1", "eve-1"):
            calls.leave[name].set()
            await settle()
        then = list(calls.running)
        group.cancel_scope.cancel()

    assert running == ["ann-1"]
    assert then == ["bob-1"]


async def test_caller_leaving_queue_frees_no_place_of_others() -> None:
    admission = one_at_a_time(queue=5)
    calls = Calls(admission)

    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, "ann-1")
        await settle()
        with anyio.CancelScope() as impatient:
            group.start_soon(calls.run, "bob-1")
            await settle()
            with anyio.move_on_after(0):
                await calls.run("eve-1")
            impatient.cancel()
        calls.leave["ann-1"].set()
        await settle()
        after = list(calls.running)
        calls.leave["bob-1"].set()
        await settle()
        everybody_gone = sum(map(admission.queue.running, ("ann", "bob", "eve")))
        group.cancel_scope.cancel()

    assert after == ["bob-1"]
    assert everybody_gone == 0


async def test_call_inside_place_takes_no_second_one() -> None:
    admission = one_at_a_time(queue=0)

    async with admission.admit("ann"):
        with inside_place():
            async with admission.admit("ann"):
                running = admission.counts
        with pytest.raises(CallError):
            await admission.admit("ann").__aenter__()

    assert running == (1, 0)


async def test_call_inside_place_refused_at_limit_by_name() -> None:
    admission = Admission(FairQueue(max_calls=9, max_calls_per_user=9))
    limit = Counted(name="one", whose="", limit=LimitSettings(max_calls=1))

    async with admission.admit("ann", [limit]):
        with inside_place(), pytest.raises(CallError) as refused:
            await admission.admit("bob", [limit]).__aenter__()
    with inside_place():
        async with admission.admit("bob", [limit]):
            pass
        async with admission.admit("bob", [limit]):
            pass

    assert refused.value.code is Code.E_BUSY
    assert "one" in refused.value.message
