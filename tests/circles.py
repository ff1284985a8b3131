"""Reference cycles of our objects, which only the garbage collector frees.

On a server such circles are what calls leave until the collector comes, which is late where most of memory is
frozen for it. Then much is freed at once, in pieces between what stays.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Circles", "circles"]

_OURS = ("runner.", "sandbox.", "test_")


class Circles:
    """Names of the types of what was found, and how many there were of each."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()


@contextmanager
def circles() -> Iterator[Circles]:
    """Let no collector run in the block; say afterwards what of ours it would have had to end."""
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
