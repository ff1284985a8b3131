import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.deadlines import Deadlines, Ladder, Rung

F, S, L, END, TOTAL = (
    Rung.FIRST_NOTICE,
    Rung.SECOND_NOTICE,
    Rung.LAST_NOTICE,
    Rung.IDLE_END,
    Rung.TOTAL_END,
)


def climbed(ladder: Ladder, until: int) -> list[tuple[int, Rung]]:
    return [(now, rung) for now in range(until + 1) for rung in ladder.climb(now)]


def test_silence_climbs_the_documented_rungs() -> None:
    """Source: S1-113 and S1-117 to S1-121."""
    assert climbed(Ladder(Deadlines(), now=0), 30) == [(15, F), (20, S), (25, L), (30, END)]


def test_progress_restarts_the_idle_time() -> None:
    """Source: S1-116."""
    ladder = Ladder(Deadlines(), now=0)

    before = [rung for now in range(18) for rung in ladder.climb(now)]
    ladder.progress(17)
    after = [(now, rung) for now in range(18, 48) for rung in ladder.climb(now)]

    assert before == [F]
    assert after == [(32, F), (37, S), (42, L), (47, END)]


def test_progress_never_moves_the_total_limit() -> None:
    ladder = Ladder(Deadlines(idle_s=10, total_s=60), now=100)

    for now in range(101, 160):
        ladder.progress(now)

    assert ladder.climb(159.9) == ()
    assert ladder.climb(160) == (TOTAL,)


@pytest.mark.parametrize(
    ("idle_s", "rungs"),
    [
        (60, [(15, F), (20, S), (55, L), (60, END)]),
        (22, [(15, F), (17, L), (20, S), (22, END)]),
        (12, [(7, L), (12, END)]),
        (4, [(4, END)]),
        (20, [(15, F), (15, L), (20, END)]),
    ],
)
def test_another_limit_keeps_two_notices_and_moves_the_third(
    idle_s: int, rungs: list[tuple[int, Rung]]
) -> None:
    assert climbed(Ladder(Deadlines(idle_s=idle_s), now=0), 70)[: len(rungs)] == rungs


def test_waiting_for_the_client_is_no_silence() -> None:
    ladder = Ladder(Deadlines(), now=0)

    ladder.pause(5)
    while_waiting = ladder.climb(300)
    ladder.resume(305)

    assert while_waiting == ()
    assert ladder.climb(314) == ()
    assert ladder.climb(315) == (F,)


def test_even_a_waiting_call_ends_at_its_total_limit() -> None:
    ladder = Ladder(Deadlines(idle_s=30, total_s=100), now=0)

    ladder.pause(5)

    assert ladder.wakes_at() == 100
    assert ladder.climb(100) == (TOTAL,)


@given(st.floats(0.1, 100), st.lists(st.floats(0.01, 40), max_size=30))
def test_the_ladder_asks_to_be_woken_exactly_when_a_rung_is_due(start: float, steps: list[float]) -> None:
    ladder = Ladder(Deadlines(idle_s=30, total_s=10_000), now=start)
    now = start

    for step in steps:
        due = ladder.wakes_at()
        now += step
        rungs = ladder.climb(now)
        assert bool(rungs) == (now >= due)
        if END in rungs:
            return
        ladder.progress(now)


@pytest.mark.parametrize(("idle_s", "total_s"), [(0, 10), (-1, 10), (20, 10), (1, math.inf), (math.nan, 1)])
def test_invalid_deadlines_are_refused(idle_s: float, total_s: float) -> None:
    with pytest.raises(ValueError, match="need 0 < idle_s <= total_s"):
        Deadlines(idle_s=idle_s, total_s=total_s)


def test_first_of_two_waits_to_end_does_not_resume_the_other() -> None:
    ladder = Ladder(Deadlines(idle_s=10, total_s=100), now=0)
    ladder.pause(1)
    ladder.pause(2)

    ladder.resume(5)

    assert ladder.climb(50) == ()
    ladder.resume(50)
    assert ladder.wakes_at() < 100
    assert Rung.IDLE_END in ladder.climb(59)
