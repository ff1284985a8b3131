"""Eviction of observations, as a pure decision."""

from contextlib import nullcontext, suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import CallError
from runner.store.entries import Entry
from runner.store.protocol import Put, Reason, Record, Retention, Scope
from runner.store.retention import Budgets, Cleanup, make_room


def observation(number: int, size: int, trace: str | None) -> Entry:
    about = Put(retention=Retention.OBSERVATIONS)
    record = Record(
        id=str(number),
        name=None,
        mime="text/plain",
        size=size,
        sha256="",
        scope=Scope(trace_id=trace),
        metadata=about,
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return Entry(record=record, blob="", put=number, key=str(number))


sizes = st.integers(0, 12)
helds = st.lists(st.tuples(sizes, st.sampled_from([None, "t", "u"])), max_size=8).map(
    lambda items: [observation(n, *each) for n, each in enumerate(items)]
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
    size: int, trace: str | None, held: list[Entry], limits: Budgets
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
    held: list[Entry],
    going: list[tuple[Entry, Reason]],
    limits: Budgets,
) -> None:
    gone = {item.key for item, _ in going}
    stays = [item for item in held if item.key not in gone]
    own = [item for item in stays if trace is not None and item.record.scope.trace_id == trace]
    assert sum(item.record.size for item in stays) + size <= limits.max_session_bytes
    assert len(stays) + 1 <= limits.max_artifacts_per_session
    assert trace is None or sum(item.record.size for item in own) + size <= limits.max_trace_bytes
    assert trace is None or len(own) + 1 <= limits.max_artifacts_per_trace
    assert limits.cleanup_strategy is not Cleanup.NONE or not gone
    of_trace = [item for item, reason in going if reason is Reason.TRACE_BUDGET]
    assert all(item.record.scope.trace_id == trace for item in of_trace)
    assert len(gone) == len(going)


@given(size=sizes, held=helds)
def test_eviction_removes_first_of_queue_first(size: int, held: list[Entry]) -> None:
    limits = Budgets(max_artifact_bytes=12, max_session_bytes=12)

    gone = [item for item, _ in make_room(size, None, held, limits)]

    assert gone == held[: len(gone)]
