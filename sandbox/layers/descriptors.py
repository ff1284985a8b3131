"""Layer `descriptors`: close every inherited descriptor not meant for this process.

Source: close_range(2).
"""

from collections.abc import Collection, Iterator

from sandbox.syscalls import close_range

__all__ = ["apply", "gaps"]

_LAST = 0xFFFF_FFFF


def apply(keep: Collection[int]) -> None:
    """Close every descriptor but those in `keep`."""
    for first, last in gaps(keep):
        close_range(first, last)


def gaps(keep: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of descriptors, both ends included, that lie between those in `keep`."""
    first = 0
    for fd in sorted(set(keep)):
        if first < fd:
            yield first, fd - 1
        first = fd + 1
    yield first, _LAST
