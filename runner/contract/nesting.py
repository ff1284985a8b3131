"""Nesting depth of JSON values, bounded to the depth that all clients read.

Readers of JSON have a limit, and lose a deeper message with the request that it answers: that of
pydantic, which clients of the Python SDK use, goes 200 levels deep. Pure.
"""

__all__ = ["MOST_LEVELS", "nests_deeper"]

MOST_LEVELS = 100
"""Deepest nesting of a message to a client: half of what the strictest reader accepts."""


def nests_deeper(value: object, levels: int = MOST_LEVELS) -> bool:
    """Return whether lists and objects lie more than so many levels deep in a JSON value.

    Looks at each item once, whatever it is, and never recurses.
    """
    at_level = [value]
    for _ in range(levels):
        at_level = [item for each in at_level if isinstance(each, dict | list) for item in _items(each)]
    return any(isinstance(each, dict | list) for each in at_level)


def _items(value: dict[object, object] | list[object]) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else value
