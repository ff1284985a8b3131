"""Imports of whole commands, and the thresholds of the garbage collector for what they run."""

import gc
from importlib import import_module
from types import ModuleType

__all__ = ["import_whole"]

# Containers beyond those that were freed, and collections of the generation below. With the defaults of
# Python 3.11 to 3.13 one JSON text of 1 MiB has the whole heap looked at four times, 50 ms each.
_THRESHOLDS = (50_000, 10, 10)


def import_whole(name: str) -> ModuleType:
    """Import a module with all that it needs, exempt it from collections, and collect less often.

    The collector would look at what the import makes a dozen times, for a fifth of the time that it takes,
    and again whenever it collects later on, only to find it in use.
    """
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()
