"""JSON values of which nobody has promised what they are: strict copies of them, and parts."""

import math
from collections.abc import Mapping
from typing import Any

from runner.contract.error_messages import legible

__all__ = ["DEPTH_MAX", "NotJsonError", "jsonable", "list_of", "mapping_of", "without"]

DEPTH_MAX = 200
# json.dumps refuses integers above 4300 digits, which is about this many bits.
INTEGER_MAX_BITS = 14_000
_PLAIN = 1 << 63


class NotJsonError(ValueError):
    """A value cannot be written as JSON; the message says why."""


def jsonable(value: Any, depth: int = 0) -> Any:
    """Return a copy of `value` that any JSON reader accepts: UTF-8 text, finite numbers, bounded depth.

    A number that is not finite becomes null, as pydantic writes it: a mean of nothing must not
    cost the whole result. Half of a surrogate pair becomes a question mark.

    Raises:
        NotJsonError: Something in it has no JSON form, or it nests too deep.
    """
    # Results are made of these, so they are told apart by their exact types first. Keys and texts are ASCII
    # mostly, and so many that a call for each would take more time than all else.
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is bool or value is None or (kind is int and -_PLAIN < value < _PLAIN):
        return value
    if depth >= DEPTH_MAX:
        _check_bottom(value)
    deeper = depth + 1
    if kind is dict:
        copy: dict[str, Any] = {}
        for key, item in value.items():
            name = key if type(key) is str and key.isascii() else _key(key)
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
    return _uncommon(value, deeper)


def _uncommon(value: object, deeper: int) -> Any:
    match value:
        case str():
            return _text(value)
        case int():
            return _integer(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {_key(key): jsonable(item, deeper) for key, item in value.items()}
        case list() | tuple():
            return [jsonable(item, deeper) for item in value]
        case _:
            raise NotJsonError(f"a value of type {type(value).__name__} cannot be written as JSON")


def _check_bottom(value: object) -> None:
    if isinstance(value, Mapping | list | tuple) and value:
        raise NotJsonError(f"it nests deeper than {DEPTH_MAX} levels")


def _text(value: str) -> str:
    # isascii costs nothing, so large base64 text is neither scanned nor copied.
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return legible(value, len(value))
    return value


def _integer(value: int) -> int:
    if value.bit_length() > INTEGER_MAX_BITS:
        raise NotJsonError("a whole number in it is too long")
    return int(value)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise NotJsonError(f"an object has a key of type {type(key).__name__}")
    return _text(key)


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """Return an array; an empty one for anything else."""
    return value if isinstance(value, list) else []


def without(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return an object without some of its keys."""
    return {key: item for key, item in value.items() if key not in keys}
