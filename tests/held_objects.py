"""The size of what an object keeps, seen from outside: how many objects it leads to."""

import gc
from types import FunctionType, ModuleType

__all__ = ["held_objects"]


def held_objects(root: object) -> int:
    """Return how many objects can be reached from one, without code."""
    seen, left = {id(root): root}, [root]
    while left:
        for found in gc.get_referents(left.pop()):
            if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
                seen[id(found)] = found
                left.append(found)
    return len(seen)
