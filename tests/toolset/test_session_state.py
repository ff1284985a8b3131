"""Session state: what a hostile tool makes of it takes neither memory nor time beyond its bounds."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runner.toolset.session_state import SessionState, StateItem, StateRefused
from runner.worker.wire import VISIBILITY_SUFFIX, full_key

MIB = 1024 * 1024
RULES = f"session{VISIBILITY_SUFFIX}"


@pytest.fixture
def state() -> SessionState:
    return SessionState()


@contextmanager
def held_at_most(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        assert tracemalloc.get_traced_memory()[0] - before <= most
    finally:
        tracemalloc.stop()


def filled(state: SessionState, user: str = "u") -> int:
    """Put as many values as possible, as small as possible; return how many."""
    for number in range(2_000_000):
        try:
            state.put(user, None, str(number), {}, None)
        except StateRefused:
            return number
    raise AssertionError("none was refused")


def test_deleted_keys_free_their_memory(state: SessionState) -> None:
    with held_at_most(8 * MIB):
        for number in range(50):
            key = f"{number}-" + "k" * MIB
            state.put("u", None, key, {}, None)
            assert state.delete("u", None, key)


def test_memory_of_each_key_counts(state: SessionState) -> None:
    assert 10_000 < filled(state) <= 16 * MIB // 256


def test_state_quota_freed_by_delete_replace_and_session_end(state: SessionState) -> None:
    last = filled(state)

    state.put("u", None, "2", {}, None)
    with pytest.raises(StateRefused, match="a user"):
        state.put("u", None, str(last), {}, None)
    state.delete("u", None, "3")
    state.put("u", None, str(last), {}, -1)
    assert state.get("u", None, str(last)) == (None, None)
    state.put("u", None, str(last + 1), {}, None)


def test_data_sent_with_each_request_is_small(state: SessionState) -> None:
    state.put("u", None, RULES, {"value": "r" * 100_000}, None)
    state.put("u", None, "large", {"value": "x" * 500_000}, None)
    state.put("u", None, RULES, {"value": "r" * 200_000}, None)

    with pytest.raises(StateRefused, match="visible"):
        state.put("u", "other", RULES, {"value": "r" * 100_000}, None)

    assert list(state.visibility("u")) == [full_key(None, RULES)]
    assert state.delete("u", None, RULES)
    state.put("u", "other", RULES, {"value": "r" * 100_000}, None)
    assert list(state.visibility("u")) == [full_key("other", RULES)]
    assert state.visibility("somebody") == {}


@pytest.mark.parametrize("ttl", [10**400, float("inf"), float("nan"), "1", [1], 1e13])
def test_invalid_expiry_refused(state: SessionState, ttl: object) -> None:
    with pytest.raises(StateRefused, match="needs a time in seconds"):
        state.put("u", None, "k", {}, ttl)

    assert state.get("u", None, "k") == (None, None)


def test_state_changes_reported_once_and_shared_ones_only(state: SessionState) -> None:
    state.take_over("u", {full_key(None, "old"): StateItem('{"v": 1}', None)})
    state.put("u", None, "new", {"v": 2}, None)
    state.put("u", None, "passing", {"v": 3}, None)
    state.delete("u", None, "passing")
    state.delete("u", None, "old")

    first, second = state.take_changes("u"), state.take_changes("u")
    state.delete("u", None, "new")

    assert first == {full_key(None, "new"): StateItem('{"v": 2}', None), full_key(None, "old"): None}
    assert second == {}
    assert state.take_changes("u") == {full_key(None, "new"): None}
