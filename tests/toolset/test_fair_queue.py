"""Order of calls, decided by a pure queue; so a test is a list of arrivals and departures."""

from itertools import count

import pytest
from held_objects import held_objects
from hypothesis import given
from hypothesis import strategies as st

from runner.toolset import admission
from runner.toolset.admission import FairQueue, Full


def queue(max_calls: int = 1, of_one: int = 1, room: int = 10_000) -> FairQueue[str]:
    return FairQueue(max_calls=max_calls, max_calls_per_user=of_one, max_queue=room)


def come(queue: FairQueue[str], *calls: str) -> list[str]:
    """Let calls come; return those that start at once."""
    started = []
    for call in calls:
        if queue.starts(call.split("-")[0]):
            started.append(call)
        else:
            queue.wait(call.split("-")[0], call)
    return started


def test_thousand_calls_of_one_user_delay_another_by_one_call() -> None:
    calls = queue()
    come(calls, *(f"ann-{number}" for number in range(1000)))

    come(calls, "bob-1")

    assert list(calls.leave("ann")) == ["bob-1"]
    assert list(calls.leave("bob")) == ["ann-1"]


def test_users_with_waiting_calls_take_turns() -> None:
    calls = queue()
    come(calls, "ann-0", "ann-1", "ann-2", "ann-3", "bob-1", "bob-2", "eve-1")

    order = ["ann-0"]
    while following := list(calls.leave(order[-1].split("-")[0])):
        order += following

    assert order == ["ann-0", "bob-1", "eve-1", "ann-1", "bob-2", "ann-2", "ann-3"]


def test_frequent_caller_does_not_overtake_waiting_one() -> None:
    """Control for the rule that a newcomer is next: a user served a moment ago is not a newcomer."""
    calls = queue()
    come(calls, "ann-0", "ann-1", "ann-2", "bob-0")
    order: list[str] = []
    for number in range(1, 4):
        (call,) = calls.leave("ann" if not order or order[-1].startswith("ann") else "bob")
        order.append(call)
        if call.startswith("bob"):
            come(calls, f"bob-{number}")

    assert order == ["bob-0", "ann-1", "bob-1"]


def test_user_at_own_limit_is_passed_over() -> None:
    calls = queue(max_calls=3, of_one=2)

    started = come(calls, "ann-1", "ann-2", "ann-3", "bob-1", "bob-2")

    assert started == ["ann-1", "ann-2", "bob-1"]
    assert list(calls.leave("bob")) == ["bob-2"]
    assert list(calls.leave("ann")) == ["ann-3"]


def test_forgotten_user_has_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_FORGET_ABOVE", 3)
    calls = queue(max_calls=1000)

    for number in range(100):
        assert come(calls, f"user{number}-1")
        if number >= 2:
            assert list(calls.leave(f"user{number}")) == []

    assert held_objects(calls) < 100
    assert calls.running("user0") == 1


users = st.sampled_from(["ann", "bob", "eve"])


class Told:
    """A queue, and what it has said of calls so far."""

    def __init__(self) -> None:
        self.calls: FairQueue[str] = FairQueue(max_calls=3, max_calls_per_user=2, max_queue=5)
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.number = count()

    def come(self, user: str) -> None:
        call = f"{user}-{next(self.number)}"
        if self.calls.starts(user):
            self.running.append(call)
            return
        try:
            gone = self.calls.wait(user, call)
        except Full:
            return
        self.waiting.append(call)
        if gone is not None:
            self.waiting.remove(gone)

    def leave(self, user: str) -> None:
        for call in [call for call in self.running if call.startswith(user)][:1]:
            self.running.remove(call)
            for started in self.calls.leave(user):
                self.waiting.remove(started)
                self.running.append(started)

    def withdraw(self, user: str) -> None:
        for call in [call for call in self.waiting if call.startswith(user)][:1]:
            assert self.calls.withdraw(user, call)
            self.waiting.remove(call)


@given(st.lists(st.tuples(users, st.sampled_from(["come", "come", "leave", "withdraw"])), max_size=60))
def test_limits_hold_and_no_place_stays_empty_at_random(acts: list[tuple[str, str]]) -> None:
    log = Told()
    for user, act in acts:
        getattr(log, act)(user)

        of = {name: sum(call.startswith(name) for call in log.running) for name in ("ann", "bob", "eve")}
        assert len(log.running) <= 3
        assert max(of.values()) <= 2
        assert len(log.waiting) <= 5
        assert {name: log.calls.running(name) for name in of} == of
        could_run = [call for call in log.waiting if of[call.split("-")[0]] < 2]
        assert len(log.running) == 3 or not could_run
