"""Selection of cases of parametrised tests where not all run: a few of each, spread over its list.

A test that starts servers in every tier, protocol version and way in takes minutes for what a few of its
cases show as a rule. `scripts/test` runs those, for each change, and one of each in files that take minutes;
`scripts/test --all` runs every case, as before a release.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

__all__ = ["chosen", "spread"]

T = TypeVar("T")


def spread(count: int, most: int, start: int = 0) -> list[int]:
    """Return which of `count` cases run where at most `most` do: evenly over all, from `start` on."""
    if count <= most:
        return list(range(count))
    return sorted((start + number * count // most) % count for number in range(most))


def chosen(cases: Iterable[tuple[str, int, T]]) -> list[T]:
    """Return what is left of cases, in their order.

    Each test begins at a place of its own in its list, always the same. So one test runs in the first tier
    and another in the last, and all of them together run in every one.

    Args:
        cases: Each with the test that it is a case of, and how many of that run at most, at least 1.
    """
    of_test: dict[tuple[str, int], list[int]] = defaultdict(list)
    all_of_them: Sequence[tuple[str, int, T]] = list(cases)
    for place, (test, most, _) in enumerate(all_of_them):
        of_test[test, most].append(place)
    left = {
        places[number]
        for (test, most), places in of_test.items()
        for number in spread(len(places), most, zlib.crc32(test.encode()))
    }
    return [case for place, (_, _, case) in enumerate(all_of_them) if place in left]
