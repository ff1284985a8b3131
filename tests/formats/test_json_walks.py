"""A lower bound of the size of JSON, found without a look at all of it."""

import json
from typing import Any

from cpu_time import cpu_s
from hypothesis import given
from hypothesis import strategies as st

from runner.formats.json_walks import least_chars

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@given(VALUES)
def test_least_chars_any_value_is_a_lower_bound(value: Any) -> None:
    assert least_chars(value, 1_000_000) <= len(json.dumps(value, ensure_ascii=False))


def test_least_chars_deep_or_circular_value_ends() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    circle: dict[Any, Any] = {1: "x"}
    circle["self"] = circle

    assert least_chars(deep, 1000) > 1000
    assert least_chars(circle, 1000) > 1000


def test_least_chars_large_value_is_not_counted_on() -> None:
    large = ["x" * 100] * 1_000_000

    assert cpu_s(lambda: least_chars(large, 1000)) < 0.5
