"""Which cases of parametrised tests run where not all do: a few of each, spread over its list.

A test that starts servers in every tier, protocol version and way in takes minutes for what a few of its
cases show as a rule. `scripts/test` runs those, for each change; `scripts/test --all` runs every case, as
before a release.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

__all__ = ["chosen", "spread"]

T = TypeVar("T")


def spread(count: int, most: int) -> list[int]:
    """Return which of `count` cases run where at most `most` do: first, last, and evenly between."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]


def chosen(cases: Iterable[tuple[Hashable, T]], most: int) -> list[T]:
    """Return what is left of cases, in their order, where at most `most` of each test run.

    Args:
        cases: Each with the test that it is a case of.
        most: How many cases of a test run, at least 1.
    """
    of_test: dict[Hashable, list[int]] = defaultdict(list)
    all_of_them: Sequence[tuple[Hashable, T]] = list(cases)
    for place, (test, _) in enumerate(all_of_them):
        of_test[test].append(place)
    left = {places[number] for places in of_test.values() for number in spread(len(places), most)}
    return [case for place, (_, case) in enumerate(all_of_them) if place in left]
