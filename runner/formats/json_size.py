"""The size of a JSON value, estimated from below, and not further than anybody wants to know.

Whoever has to decide between the event loop and a thread must not look at all of a large value for that.
"""

from collections.abc import Iterable
from typing import Any

__all__ = ["least_chars"]


def least_chars(value: Any, enough: int) -> int:
    """Return a lower bound of the characters of a value as JSON, not counted further than `enough`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        total = 2 + 4 * len(value) + sum(map(len, value))
        items: Iterable[Any] = value.values()
    elif isinstance(value, list):
        total, items = max(2, 2 * len(value)), value
    else:
        return 1
    for item in items:
        if total > enough:
            break
        if isinstance(item, str):
            total += len(item)
        else:
            total += least_chars(item, enough - total) if isinstance(item, dict | list) else 1
    return total
