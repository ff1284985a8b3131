import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.host.pool import IdleWorkers


def yes() -> bool:
    return True


def no() -> bool:
    return False


def test_a_stock_begins_with_its_least() -> None:
    assert (IdleWorkers(least=2, most=8).size, IdleWorkers(least=0, most=0).size) == (2, 0)


@pytest.mark.parametrize(("least", "most"), [(-1, 2), (3, 2)])
def test_invalid_idle_worker_bounds_are_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match=f"{least} to {most}"):
        IdleWorkers(least=least, most=most)


def test_idle_worker_target_grows_by_one_per_miss_up_to_maximum() -> None:
    idle_workers = IdleWorkers(least=2, most=4)

    sizes = []
    for _ in range(4):
        idle_workers.found(0, has_room=yes)
        sizes.append(idle_workers.size)

    assert sizes == [3, 4, 4, 4]


def test_call_with_idle_worker_does_not_raise_target() -> None:
    idle_workers = IdleWorkers(least=2, most=4)

    idle_workers.found(1, has_room=yes)

    assert idle_workers.size == 2


def test_idle_worker_target_is_not_raised_without_memory() -> None:
    idle_workers = IdleWorkers(least=2, most=4)

    idle_workers.found(0, has_room=no)

    assert idle_workers.size == 2


def test_memory_is_checked_only_when_decisive() -> None:
    def check() -> bool:
        raise AssertionError

    full = IdleWorkers(least=1, most=1)

    IdleWorkers(least=1, most=2).found(1, has_room=check)
    full.found(0, has_room=check)

    assert full.size == 1


def test_unused_idle_workers_are_dropped_one_at_a_time() -> None:
    idle_workers = IdleWorkers(least=1, most=4)
    for _ in range(3):
        idle_workers.found(0, has_room=yes)

    sizes = []
    for _ in range(5):
        idle_workers.calm()
        sizes.append(idle_workers.size)

    # The first time is the one in which calls found nobody.
    assert sizes == [4, 3, 2, 1, 1]


def test_used_idle_workers_are_retained() -> None:
    idle_workers = IdleWorkers(least=1, most=4)
    idle_workers.found(0, has_room=yes)
    idle_workers.calm()

    idle_workers.found(1, has_room=yes)
    idle_workers.calm()

    assert idle_workers.size == 2


@given(st.lists(st.one_of(st.none(), st.integers(0, 10)), max_size=60))
def test_idle_worker_target_stays_within_bounds(calls: list[int | None]) -> None:
    idle_workers = IdleWorkers(least=2, most=5)

    for parked in calls:
        if parked is None:
            idle_workers.calm()
        else:
            idle_workers.found(parked, has_room=yes)

        assert 2 <= idle_workers.size <= 5
