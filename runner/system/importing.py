"""Import what a command consists of, without the collector."""

import gc
from importlib import import_module
from types import ModuleType

__all__ = ["import_whole"]


def import_whole(name: str) -> ModuleType:
    """Import a module, with all that it needs, and hold it for something that stays.

    The collector would look at what the import makes a dozen times, for a fifth of the time that it takes,
    and again whenever it collects later on, only to find it in use.
    """
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()
