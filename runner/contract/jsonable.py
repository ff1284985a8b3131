"""Copy a value so that it is strict JSON: UTF-8 text, finite numbers, bounded depth."""

import math
from collections.abc import Mapping
from typing import Any

from runner.contract.envelope import legible

__all__ = ["DEPTH_MAX", "NotJsonError", "jsonable"]

DEPTH_MAX = 200
# json.dumps refuses integers above 4300 digits, which is about this many bits.
INTEGER_MAX_BITS = 14_000


class NotJsonError(ValueError):
    """A value cannot be written as JSON; the message says why."""


def jsonable(value: object, depth: int = 0) -> Any:
    """Return a copy of `value` that any JSON reader accepts.

    A number that is not finite becomes null, as pydantic writes it: a mean of nothing must not
    cost the whole result. Half of a surrogate pair becomes a question mark.

    Raises:
        NotJsonError: Something in it has no JSON form, or it nests too deep.
    """
    if depth > DEPTH_MAX:
        raise NotJsonError(f"it nests deeper than {DEPTH_MAX} levels")
    match value:
        case None | bool():
            return value
        case str():
            return _text(value)
        case int():
            return _integer(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {_key(key): jsonable(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [jsonable(item, depth + 1) for item in value]
        case _:
            raise NotJsonError(f"a value of type {type(value).__name__} cannot be written as JSON")


def _text(value: str) -> str:
    # isascii costs nothing, so large base64 text is neither scanned nor copied.
    return value if value.isascii() else legible(value, len(value))


def _integer(value: int) -> int:
    if value.bit_length() > INTEGER_MAX_BITS:
        raise NotJsonError("a whole number in it is too long")
    return int(value)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise NotJsonError(f"an object has a key of type {type(key).__name__}")
    return _text(key)
