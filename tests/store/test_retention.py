"""Eviction of observations, as a pure decision."""

from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import CallError
from runner.store.protocol import Reason
from runner.store.retention import Budgets, Cleanup, KeptObservation, make_room

sizes = st.integers(0, 12)
helds = st.lists(st.tuples(sizes, st.sampled_from([None, "t", "u"]), st.integers(0, 9)), max_size=8).map(
    lambda items: [
        KeptObservation(key=str(n), size=size, trace=trace, put=n, used=n + extra)
        for n, (size, trace, extra) in enumerate(items)
    ]
)
budgets = st.builds(
    Budgets,
    max_artifact_bytes=st.just(10),
    max_session_bytes=st.integers(5, 30),
    max_trace_bytes=st.integers(5, 30),
    max_artifacts_per_trace=st.integers(1, 4),
    max_artifacts_per_session=st.integers(1, 6),
    cleanup_strategy=st.sampled_from(Cleanup),
)


@given(size=sizes, trace=st.sampled_from([None, "t"]), held=helds, limits=budgets)
def test_eviction_meets_every_budget_and_removes_nothing_in_vain(
    size: int, trace: str | None, held: list[KeptObservation], limits: Budgets
) -> None:
    largest = min(limits.max_artifact_bytes, limits.max_session_bytes)
    if size > (largest if trace is None else min(largest, limits.max_trace_bytes)):
        with pytest.raises(CallError, match="limit"):
            make_room(size, trace, held, limits)
        return
    with suppress(CallError) if limits.cleanup_strategy is Cleanup.NONE else nullcontext():
        going = make_room(size, trace, held, limits)
        assert_within(size, trace, held, going, limits)


def assert_within(
    size: int,
    trace: str | None,
    held: list[KeptObservation],
    going: tuple[tuple[KeptObservation, Reason], ...],
    limits: Budgets,
) -> None:
    gone = {item.key for item, _ in going}
    stays = [item for item in held if item.key not in gone]
    own = [item for item in stays if trace is not None and item.trace == trace]
    assert sum(item.size for item in stays) + size <= limits.max_session_bytes
    assert len(stays) + 1 <= limits.max_artifacts_per_session
    assert trace is None or sum(item.size for item in own) + size <= limits.max_trace_bytes
    assert trace is None or len(own) + 1 <= limits.max_artifacts_per_trace
    assert limits.cleanup_strategy is not Cleanup.NONE or not gone
    assert all(item.trace == trace for item, reason in going if reason is Reason.TRACE_BUDGET)
    assert len(gone) == len(going)


@given(size=sizes, held=helds)
def test_who_goes_is_older_than_who_stays_by_the_strategys_clock(
    size: int, held: list[KeptObservation]
) -> None:
    for cleanup in (Cleanup.LRU, Cleanup.FIFO):
        limits = Budgets(max_artifact_bytes=12, max_session_bytes=12, cleanup_strategy=cleanup)

        gone = [item for item, _ in make_room(size, None, held, limits)]

        ages = [item.used if cleanup is Cleanup.LRU else item.put for item in gone]
        left = [item.used if cleanup is Cleanup.LRU else item.put for item in held if item not in gone]
        assert not ages or not left or max(ages) <= min(left)
