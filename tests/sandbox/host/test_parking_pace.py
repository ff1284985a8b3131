"""Times at which an answered worker is stopped and sampled, by a clock of the test, without processes."""

import asyncio
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from types import SimpleNamespace
from typing import cast

import pytest

from sandbox.host import parking
from sandbox.host.connection import Connection
from sandbox.host.parking import Parking
from sandbox.host.retirement import Reuse
from sandbox.host.worker import Worker


@dataclass
class Clock:
    """A clock that goes on from one timer to the next, and what happened when, in seconds."""

    now: float = 100.0
    timers: list[tuple[float, int, Callable[..., None]]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    stopped: dict[int, float] = field(default_factory=dict)
    looked: dict[int, list[float]] = field(default_factory=dict)
    stops_after_s: dict[int, float] = field(default_factory=dict)

    def call_later(self, delay: float, callback: Callable[..., None], *_: object) -> SimpleNamespace:
        heapq.heappush(self.timers, (self.now + delay, next(self.numbers), callback))
        return SimpleNamespace(cancel=lambda: None)

    def run(self, seconds: float) -> None:
        """Let time go by."""
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            self.now, _, callback = heapq.heappop(self.timers)
            callback()
        self.now = end

    def is_stopped(self, pid: int) -> bool:
        self.looked.setdefault(pid, []).append(self.now)
        return self.now - self.stopped[pid] >= self.stops_after_s.get(pid, 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(parking, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(
        parking, "asyncio", SimpleNamespace(**{**vars(asyncio), "get_running_loop": lambda: clock})
    )
    monkeypatch.setattr(parking, "stop_process", lambda pidfd: clock.stopped.setdefault(pidfd, clock.now))
    monkeypatch.setattr(parking, "is_stopped", clock.is_stopped)
    monkeypatch.setattr(parking, "has_room", lambda: True)
    monkeypatch.setattr(Parking, "_inspect", lambda *_: None)
    return clock


@pytest.fixture
def parked(clock: Clock) -> Parking:
    return Parking(
        reuse=Reuse(),
        raises_limits=True,
        has_strays=lambda _: False,
        retire=lambda worker, reason: pytest.fail(f"{worker.pid} was retired: {reason}"),
    )


class NoProcess(Worker):
    """A worker without a process."""

    def is_running(self) -> bool:
        return True


def answered(number: int, clock: Clock) -> Worker:
    """Return a worker that has answered a call just now; its number stands for its descriptor, too."""
    nobody = cast("Connection", None)
    return NoProcess(pid=number, pidfd=number, connection=nobody, output=-1, calls=1, idle_since=clock.now)


def test_worker_stopping_at_once_is_parked_within_10_ms(clock: Clock, parked: Parking) -> None:
    worker = answered(1, clock)
    began = clock.now

    parked.park(worker)
    clock.run(0.0079)
    assert not worker.stop_sent
    clock.stops_after_s[1] = 0.0005
    clock.run(0.0021)

    assert clock.stopped[1] == began + 0.008
    assert worker.has_stopped


def test_worker_slow_to_stop_is_sampled_less_often_with_time(clock: Clock, parked: Parking) -> None:
    worker = answered(1, clock)
    clock.stops_after_s[1] = 5.0

    parked.park(worker)
    clock.run(4.0)
    looks = clock.looked[1]

    assert not worker.has_stopped
    assert len([when for when in looks if when < looks[0] + 0.03]) >= 25
    late = [when for when in looks if when > looks[0] + 0.1]
    assert min(after - before for before, after in pairwise(late)) > 0.0035
    clock.run(2.0)
    assert worker.has_stopped


def test_workers_beside_a_stopping_one_are_not_sampled_more(clock: Clock, parked: Parking) -> None:
    stuck = answered(1, clock)
    clock.stops_after_s[1] = 3600.0
    parked.park(stuck)
    clock.run(1.0)
    looked = len(clock.looked[1])

    for number in range(2, 102):
        worker = answered(number, clock)
        clock.stops_after_s[number] = 0.003
        parked.park(worker)
        clock.run(0.02)
        assert worker.has_stopped
        # A user whose next call comes at once does not pay for stopping and continuing.
        assert clock.stopped[number] - worker.idle_since >= 0.004 - 1e-9

    assert len(clock.looked[1]) - looked < 2.0 / 0.004 * 1.1


def test_worker_not_stopping_in_time_is_retired_and_other_stays(clock: Clock) -> None:
    retired: list[tuple[int, str, float]] = []
    parked = Parking(
        reuse=Reuse(),
        raises_limits=True,
        has_strays=lambda _: False,
        retire=lambda worker, reason: retired.append((worker.pid, reason, clock.now)),
    )
    began, late, slow = clock.now, answered(1, clock), answered(2, clock)
    clock.stops_after_s |= {1: 3600.0, 2: 8.0}

    parked.park(late)
    parked.park(slow)
    clock.run(20.0)

    ((number, reason, when),) = retired
    assert (number, reason) == (1, "not stopped")
    assert when - began == pytest.approx(10.0, abs=0.1)
    assert slow.has_stopped
