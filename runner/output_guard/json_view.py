"""A result as plain JSON values, with the facts that the layers need before they examine it.

Unlike `runner.contract.jsonable` this refuses no value of a tool, a transformer or a remote server: models
become objects, numbers that are not finite null, lone surrogates question marks. Bytes stay bytes, for the
layers to remove. A value that needs no change is returned itself, not a copy.
"""

import base64
import contextlib
import dataclasses
import itertools
import json
import math
import operator
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from runner.output_guard.encoded import seem_parts

__all__ = [
    "DEPTH_MAX",
    "JsonView",
    "Unruly",
    "beginning_of",
    "json_text",
    "raw_json",
    "text_of",
    "thawed",
    "view",
]

DEPTH_MAX = 100
# json.dumps refuses integers above 4300 digits, which is about this many bits.
_INTEGER_MAX_BITS = 14_000
_BITS_OF_A_WORD = 64
# Rounded up, so that the count stays a lower bound.
_BITS_OF_A_DIGIT = 4
# A character outside the basic plane, as a pair; a number of 64 bits with its comma or key.
_LONGEST_ESCAPE = 12
_LONGEST_BETWEEN = 32
_NUMBERS = frozenset({int, float, bool, type(None)})
_BLOCK_TYPES = frozenset({"image", "audio", "resource"})


class Unruly(ValueError):
    """A structure has too many items or nests too deeply to be examined."""


@dataclasses.dataclass(slots=True)
class JsonView:
    """A plain value, with facts about it.

    Attributes:
        value: The value: None, booleans, numbers, strings, lists, dictionaries; and bytes.
        longest: Length of its longest string, keys included.
        chars: Characters of all strings; a lower bound of its text.
        elements: Number of its items.
        typed: Whether it contains a content block that may hold bytes.
        raw: Whether it contains bytes.
        listed: Least characters of its longest list that may be one content in parts.
    """

    value: Any = None
    longest: int = 0
    chars: int = 0
    elements: int = 0
    typed: bool = False
    raw: bool = False
    listed: int = 0

    @property
    def most_chars(self) -> int:
        """An upper bound of its text, if it contains no bytes: with escapes and punctuation."""
        return _LONGEST_ESCAPE * self.chars + _LONGEST_BETWEEN * (self.elements + 1)


def view(value: Any, *, max_elements: int) -> JsonView:
    """Return `value` as plain JSON values, with facts about them.

    Raises:
        Unruly: It has more than `max_elements` items or nests deeper than `DEPTH_MAX`.
    """
    seen = JsonView()
    seen.value = _plain(value, seen, max_elements, 0)
    return seen


def text_of(value: Any) -> str:
    """Return the text of a plain value for a model: a string itself, anything else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def beginning_of(value: Any, most_chars: int) -> str:
    """Return at least the first `most_chars` characters of `text_of`, without encoding all of it."""
    if isinstance(value, str):
        return value
    pieces, left = list[str](), most_chars
    for piece in _ENCODER.iterencode(value):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            break
    return "".join(pieces)


def json_text(value: Any) -> str:
    """Return a plain value as JSON."""
    return _ENCODER.encode(value)


def raw_json(value: Any) -> bytes:
    """Return any value at all as JSON; only an excerpt if it is cyclic or nests too deeply."""
    try:
        return to_json(value, bytes_mode="base64", by_alias=True, exclude_none=False, fallback=_foreign)
    except (ValueError, TypeError, RecursionError):
        # It is limited to 250 levels and refuses lone surrogates.
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            return json_text(value).encode("utf-8", "replace")
    # It is an object of code in this process. An integer may also be too long for `repr`.
    excerpt = f"<{type(value).__name__}>"
    with contextlib.suppress(ValueError):
        excerpt = reprlib.repr(value)
    return json_text(excerpt).encode("utf-8", "replace")


def thawed(value: Any) -> Any:
    """Return a copy of a plain value whose containers may be changed."""
    if isinstance(value, dict):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any, seen: JsonView, allowed: int, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return _string(value, seen)
    if kind in _NUMBERS:
        return _number(value, seen)
    if kind is bytes:
        seen.raw = True
        return value
    if depth >= DEPTH_MAX:
        raise Unruly(f"nests deeper than {DEPTH_MAX} levels")
    if kind is dict or kind is list:
        seen.elements += len(value)
        seen.chars += 2 * len(value)
        if seen.elements > allowed:
            raise Unruly(f"has more than {allowed} items")
        return (_object if kind is dict else _array)(value, seen, allowed, depth)
    return _plain(_foreign(value), seen, allowed, depth + 1)


def _string(text: str, seen: JsonView) -> str:
    length = len(text)
    seen.chars += length
    if length > seen.longest:
        seen.longest = length
    # isascii costs nothing, so large base64 text is neither scanned nor copied.
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _number(value: Any, seen: JsonView) -> Any:
    if type(value) is float:
        return value if math.isfinite(value) else None
    bits = 0 if value is None else value.bit_length()
    if bits > _INTEGER_MAX_BITS:
        return _string(hex(value), seen)
    if bits > _BITS_OF_A_WORD:
        seen.chars += bits // _BITS_OF_A_DIGIT
    return value


def _object(value: dict[Any, Any], seen: JsonView, allowed: int, depth: int) -> Any:
    kind = value.get("type")
    if isinstance(kind, str) and kind in _BLOCK_TYPES:
        seen.typed = True
    if "0" in value:
        seen.listed = max(seen.listed, 6 * len(value))
    made: dict[str, Any] | None = None
    for done, (key, item) in enumerate(value.items()):
        plain = _string(item, seen) if type(item) is str else _plain(item, seen, allowed, depth + 1)
        name = _string(key, seen) if type(key) is str else _key(key)
        if made is None and (plain is not item or name is not key):
            made = dict(itertools.islice(value.items(), done))
        if made is not None:
            made[name] = plain
    return value if made is None else made


def _array(value: list[Any], seen: JsonView, allowed: int, depth: int) -> Any:
    before = seen.chars - 2 * len(value)
    made = [_plain(item, seen, allowed, depth + 1) for item in value]
    if value and seen.chars - before > seen.listed and seem_parts(value):
        seen.listed = seen.chars - before
    return value if all(map(operator.is_, made, value)) else made


def _key(key: object) -> str:
    return str(key).encode("utf-8", "replace").decode()


def _foreign(value: Any) -> Any:
    """Return the plain form of a value that JSON lacks."""
    match value:
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True, exclude_none=True)
        case bytearray() | memoryview():
            return bytes(value)
        case bytes():
            return base64.b64encode(value).decode()
        case str() | int() | float():
            return _base_value(value)
        case Mapping():
            return dict(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        case Iterable() if not hasattr(value, "__next__"):
            return list(value)
        case _:
            return str(value)


def _base_value(value: str | float) -> str | int | float:
    # Not str(value): for an enumeration, that is its name.
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else float(value)


# Shared: making an encoder takes longer than encoding a small value.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_foreign)
