"""Selected cases are spread over the list of a test; no test is left out."""

import pytest
from spread_cases import chosen, spread


@pytest.mark.parametrize(
    ("count", "most", "start", "places"),
    [
        (1, 3, 7, [0]),
        (3, 3, 1, [0, 1, 2]),
        (4, 3, 0, [0, 1, 2]),
        (9, 3, 0, [0, 3, 6]),
        (9, 3, 4, [1, 4, 7]),
        (5, 1, 13, [3]),
        (273, 2, 0, [0, 136]),
    ],
)
def test_chosen_cases_are_spread_over_all(count: int, most: int, start: int, places: list[int]) -> None:
    assert spread(count, most, start) == places


def test_each_test_keeps_a_case_and_the_order_stays() -> None:
    cases = [("a", 2, "a1"), ("b", 2, "b1"), ("a", 2, "a2"), ("a", 2, "a3"), ("c", 2, "c1"), ("a", 2, "a4")]

    left = chosen(cases)

    assert left in (["a1", "b1", "a3", "c1"], ["b1", "a2", "c1", "a4"])
    assert chosen((test, 9, case) for test, _, case in cases) == [case for _, _, case in cases]


def test_single_case_choices_cover_every_test_and_tier() -> None:
    tiers = ("process", "user", "namespace", "gvisor")

    left = chosen((f"test_{number}", 1, (number, tier)) for number in range(40) for tier in tiers)

    assert [number for number, _ in left] == list(range(40))
    assert {tier for _, tier in left} == set(tiers)


def test_cheap_cases_are_chosen_beside_expensive_ones() -> None:
    cases = [("a", 1, "dear1"), ("a", 9, "cheap1"), ("a", 1, "dear2"), ("a", 9, "cheap2")]

    left = chosen(cases)

    assert len(left) == 3
    assert {"cheap1", "cheap2"} < set(left)
