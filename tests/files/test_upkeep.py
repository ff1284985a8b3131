"""The schedule of sweeps."""

import itertools
import random

from runner.files.upkeep import pauses


def test_local_store_is_swept_at_once_and_every_five_minutes() -> None:
    assert list(itertools.islice(pauses(shared=False), 3)) == [0, 300, 300]


def test_shared_store_is_swept_hourly_at_a_time_of_each_host() -> None:
    chance = random.Random(7).random

    first, *later = itertools.islice(pauses(shared=True, chance=chance), 200)

    assert 0 <= first <= 300
    assert all(1800 <= pause <= 5400 for pause in later)
    assert len(set(later)) == len(later)
    assert 3300 < sum(later) / len(later) < 3900
