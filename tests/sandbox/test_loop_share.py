"""Long work in the host's event loop leaves others their turns."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from pools import Ears, forkserver_of, pool_of, run
from support import Turns, counting_turns

from sandbox.host.pool import Pool
from sandbox.loop_share import LoopShare
from sandbox.outcome import Ending

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

REQUESTS = 12


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with forkserver_of("small") as forkserver, pool_of(forkserver, tmp_path) as it:
        yield it


@dataclass(kw_only=True)
class Laborious(Ears):
    """Listener that works in the loop for each request, and records the turns of another before it."""

    turns: Turns
    at: list[int] = field(default_factory=list)

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        self.at.append(self.turns.count)
        time.sleep(0.05)  # noqa: ASYNC251 - it is to hold the loop up
        return {}


@pytest.mark.parametrize("rests", [True, False])
async def test_slow_requests_leave_others_their_turns(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    if not rests:
        monkeypatch.setattr(LoopShare, "rest_s", lambda _self, *, now: 0.0)
    async with counting_turns() as turns:
        ears = Laborious(turns=turns)
        outcome = await run(pool, "ask_at_once", REQUESTS, ears=ears)

    assert outcome.ending is Ending.ANSWERED
    assert len(ears.at) == REQUESTS
    # Without rests all that came together is served in one go.
    assert len(set(ears.at)) > REQUESTS // 2 if rests else len(set(ears.at)) <= REQUESTS // 4


async def test_worker_note_has_a_lower_value_limit_than_an_answer(
    pool: Pool,
) -> None:
    allowed = await run(pool, "say_values", 590_000, ears=Ears())
    refused = await run(pool, "say_values", 600_001, ears=Ears())
    answer = await run(pool, "echo", [0] * 600_001, ears=Ears())

    assert allowed.ending is Ending.ANSWERED
    assert refused.ending is Ending.BROKE_PROTOCOL
    assert "values is above the limit of 600000" in str(refused.fault)
    assert answer.ending is Ending.ANSWERED


async def test_invalid_json_answer_of_client_reaches_the_tool(pool: Pool) -> None:
    outcome = await run(pool, "ask", "why?", ears=Ears(answer={"because": float("nan")}))

    assert outcome.answer is not None
    replied = outcome.answer["value"]
    assert isinstance(replied, dict)
    assert "cannot be sent" in replied["error"]["message"]


def test_burst_is_free_and_long_work_rests_twice_as_long() -> None:
    share = LoopShare()

    share.spend(0.1, now=100.0)
    after_burst = share.rest_s(now=100.0)
    share.spend(0.5, now=100.0)

    assert after_burst == pytest.approx(0.0)
    assert share.rest_s(now=100.0) == pytest.approx(1.0)
    assert share.rest_s(now=101.5) == 0.0


def test_unused_loop_share_is_capped_at_one_burst() -> None:
    share = LoopShare()

    share.spend(0.0, now=0.0)
    share.spend(0.2, now=1000.0)

    assert share.rest_s(now=1000.0) == pytest.approx(0.2)


async def test_awaited_steps_count_and_waiting_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("sandbox.loop_share.time", SimpleNamespace(monotonic=lambda: clock.now))
    share, ended = LoopShare(), asyncio.Event()

    async def work() -> str:
        clock.now += 0.2
        await ended.wait()
        clock.now += 0.2
        return "done"

    working = asyncio.create_task(share.measured(work))
    await asyncio.sleep(0)
    rest_before = share.rest_s(now=clock.now)
    clock.now += 0.5
    waited = share.rest_s(now=clock.now)
    ended.set()

    assert await working == "done"
    assert rest_before == pytest.approx(0.2)
    assert waited == 0.0
    assert share.rest_s(now=clock.now) == pytest.approx(0.2)


async def test_cancellation_reaches_the_awaited_coroutine() -> None:
    share, cancelled = LoopShare(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    working = asyncio.create_task(share.measured(work))
    await asyncio.sleep(0)
    working.cancel()

    with pytest.raises(asyncio.CancelledError):
        await working
    assert cancelled.is_set()
