"""Selection of a few cases of each parametrised test, spread over its list, if not all are to run.

A test that starts servers in every tier, protocol version and transport takes minutes, although a few of its
cases usually show the same. `scripts/test` runs only those for each change, and one case per test in files
that take minutes. `scripts/test --all` runs every case, as before a release.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

__all__ = ["chosen", "spread"]

T = TypeVar("T")


def spread(count: int, most: int, start: int = 0) -> list[int]:
    """Return the indexes of at most `most` of `count` cases, spread evenly, beginning at `start`."""
    if count <= most:
        return list(range(count))
    return sorted((start + number * count // most) % count for number in range(most))


def chosen(cases: Iterable[tuple[str, int, T]]) -> list[T]:
    """Return the selected cases, in their order.

    Each test starts at its own fixed place in its list. So one test runs in the first tier and another in the
    last, and together they cover every tier.

    Args:
        cases: Each as its test, the maximum number of cases of that test (at least 1), and the case.
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
