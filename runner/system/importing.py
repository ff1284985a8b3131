"""Imports of whole commands, and garbage collector thresholds for these."""

import gc
from importlib import import_module
from types import ModuleType

__all__ = ["import_whole"]

# Net allocations of containers, and collections of the generation below. With the defaults of Python 3.11
# to 3.13, parsing 1 MiB of JSON causes four full collections of 50 ms each.
_THRESHOLDS = (50_000, 10, 10)


def import_whole(name: str) -> ModuleType:
    """Import a module with all that it needs, exempt it from collections, and collect less often.

    Otherwise the collector would traverse the imported objects a dozen times, for a fifth of the import time,
    and again at each later collection, although they stay in use.
    """
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()
