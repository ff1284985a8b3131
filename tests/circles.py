"""Reference cycles of our objects, which only the garbage collector frees.

On a server, calls leave such cycles behind until the collector runs, which is late if most of memory is
frozen. It then frees much memory at once, fragmented by the objects that survive.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Circles", "circles"]

_OURS = ("runner.", "sandbox.", "test_")


class Circles:
    """Number of objects found in cycles, by the name of their type."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()


@contextmanager
def circles() -> Iterator[Circles]:
    """Disable the collector in the block; record afterwards which objects of ours it would have freed."""
    found_circles = Circles()
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield found_circles
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = (type(left) for left in gc.garbage)
        found_circles.found.update(kind.__name__ for kind in kinds if kind.__module__.startswith(_OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()
        gc.collect()
