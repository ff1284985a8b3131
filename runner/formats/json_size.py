"""The size of a JSON value, estimated from below, and not further than anybody wants to know.

A caller that chooses between the event loop and a thread must not walk all of a large value for that.
"""

from typing import Any

__all__ = ["least_chars"]


def least_chars(value: Any, enough: int) -> int:
    """Return a lower bound of the characters of a value as JSON, not counted much further than `enough`."""
    # No recursion: a value may nest as deep as it likes, or hold itself.
    total, left = 0, [value]
    while left and total <= enough:
        item = left.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            total += 2 + 4 * len(item) + sum(len(key) for key in item if isinstance(key, str))
            left.extend(item.values())
        elif isinstance(item, list):
            total += max(2, 2 * len(item))
            left.extend(item)
        else:
            total += 1
    return total
