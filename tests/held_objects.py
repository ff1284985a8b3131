"""Numbers of objects and descriptors that are kept."""

import contextlib
import gc
import os
from types import FunctionType, ModuleType

from sandbox.host.readers import Readers
from sandbox.loop_share import LoopShare

__all__ = ["held_objects", "open_descriptors"]


def held_objects(root: object) -> int:
    """Return the number of objects reachable from `root`, without types, modules and functions."""
    seen, left = {id(root): root}, [root]
    while left:
        for found in gc.get_referents(left.pop()):
            if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
                seen[id(found)] = found
                left.append(found)
    return len(seen)


def open_descriptors() -> int:
    """Return the number of open descriptors, without those that only garbage of earlier tests holds.

    In an event loop it counts the epoll that all its readers share, which the first one opens for good.
    """
    with contextlib.suppress(RuntimeError):
        Readers(LoopShare()).close()
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
