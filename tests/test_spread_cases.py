"""Where not all cases of a test run, those that do are spread over its list, and no test is left out."""

import pytest
from spread_cases import chosen, spread


@pytest.mark.parametrize(
    ("count", "most", "places"),
    [(1, 3, [0]), (3, 3, [0, 1, 2]), (4, 3, [0, 2, 3]), (9, 3, [0, 4, 8]), (5, 1, [0]), (273, 2, [0, 272])],
)
def test_cases_that_run_are_spread_over_all(count: int, most: int, places: list[int]) -> None:
    assert spread(count, most) == places


def test_each_test_keeps_a_case_and_the_order_stays() -> None:
    cases = [("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a3"), ("c", "c1"), ("a", "a4")]

    assert chosen(cases, 2) == ["a1", "b1", "c1", "a4"]
    assert chosen(cases, 9) == [case for _, case in cases]
