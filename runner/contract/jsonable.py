"""Untrusted JSON values: strict copies of them, and parts."""

import math
from collections.abc import Mapping
from typing import Any

from runner.contract.error_messages import legible

__all__ = ["DEPTH_MAX", "NotJsonError", "jsonable", "list_of", "mapping_of", "without"]

DEPTH_MAX = 200
# json.dumps refuses integers above 4300 digits, which is about this many bits.
INTEGER_MAX_BITS = 14_000


class NotJsonError(ValueError):
    """A value cannot be written as JSON; the message has the reason."""


def jsonable(value: Any, depth: int = 0) -> Any:
    """Return a copy of a JSON value as strict JSON: UTF-8 text, finite numbers, bounded depth.

    A number that is not finite becomes null, as in pydantic: the mean of an empty list must not cost the
    whole result. A lone surrogate becomes a question mark.

    Raises:
        NotJsonError: A part of it has no JSON form, or it nests too deeply.
    """
    # Most keys and texts are ASCII, and so many that a call for each would dominate the time.
    kind, deeper = type(value), depth + 1
    if kind is str:
        return _text(value)
    if kind is bool or value is None:
        return value
    if kind is int:
        if value.bit_length() > INTEGER_MAX_BITS:
            raise NotJsonError("a whole number in it is too long")
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if depth >= DEPTH_MAX and value:
        raise NotJsonError(f"it nests deeper than {DEPTH_MAX} levels")
    if kind is dict:
        copy: dict[str, Any] = {}
        for key, item in value.items():
            name = key if key.isascii() else _text(key)
            if type(item) is str:
                copy[name] = item if item.isascii() else _text(item)
            else:
                copy[name] = jsonable(item, deeper)
        return copy
    if kind is list:
        return [
            (item if item.isascii() else _text(item)) if type(item) is str else jsonable(item, deeper)
            for item in value
        ]
    raise NotJsonError(f"a value of type {kind.__name__} cannot be written as JSON")


def _text(value: str) -> str:
    # isascii costs nothing, so large base64 text is neither scanned nor copied.
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return legible(value, len(value))
    return value


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """Return an array; an empty one for anything else."""
    return value if isinstance(value, list) else []


def without(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return an object without some of its keys."""
    return {key: item for key, item in value.items() if key not in keys}
