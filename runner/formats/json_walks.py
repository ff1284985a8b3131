"""Walks over JSON values: a lower bound of their size, their depth, and edits of their texts. Pure.

A caller that chooses between the event loop and a thread must not walk all of a large value to decide.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["MOST_LEVELS", "least_chars", "map_texts", "nests_deeper"]

MOST_LEVELS = 100
"""Deepest nesting of a message to a client: half of what the strictest reader accepts.

A JSON parser that refuses a deeper message also loses the request that it answers. The limit of pydantic,
which clients of the Python SDK use, is 200 levels.
"""


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


def nests_deeper(value: object, levels: int = MOST_LEVELS) -> bool:
    """Return whether lists and objects nest more than `levels` deep in a JSON value.

    Visits each item once, and never recurses.
    """
    at_level = [value]
    for _ in range(levels):
        at_level = [item for each in at_level for item in _items(each)]
    return any(isinstance(each, dict | list) for each in at_level)


def map_texts(value: Any, edit: Callable[[str], str], *, most_levels: int = 50) -> Any:
    """Return a JSON value with each of its texts and keys edited, and without values that nest too deeply.

    Deeper values have no reader, and could contain text that an edit should remove.
    """
    match value:
        case str():
            return edit(value)
        case dict() | list() if most_levels <= 0:
            return "…"
        case dict():
            deeper = most_levels - 1
            return {edit(str(key)): map_texts(item, edit, most_levels=deeper) for key, item in value.items()}
        case list():
            return [map_texts(item, edit, most_levels=most_levels - 1) for item in value]
        case _:
            return value


def _items(value: object) -> list[object]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
