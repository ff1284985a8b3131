"""Strict JSON: Python's parser without its extensions.

`json` accepts `NaN` and `Infinity`, and parses `1e999` as infinity, but no JSON can be written for these.
A text that is nested too deeply for the interpreter is rejected like a malformed one.

Parsing costs time and memory for each value, not for each byte: a megabyte may be one string, or a million
numbers. So values are counted before a text is parsed. That reads each byte a few times, whether the text is
well-formed or not. It takes a nanosecond a byte with few strings, and with mostly strings about as long as
parsing.

Source: RFC 8259, sections 2, 6 and 7.
"""

import json
import math
import re
from typing import NoReturn

__all__ = ["loads", "values_above"]

_NUMBER_CHARS = 40
_NO_MARKS = bytes(set(range(256)).difference(b",[{"))
_EMPTY = re.compile(rb"\[[ \t\r\n]*+\]|\{[ \t\r\n]*+\}")


def loads(text: str, *, line_breaks: bool = False) -> object:
    """Return the value of a JSON text.

    Args:
        text: The text.
        line_breaks: Whether to accept control characters in strings, as models write them.

    Raises:
        ValueError: It is not JSON; the message names the fault and its position.
    """
    try:
        return (_LENIENT if line_breaks else _STRICT).decode(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:_NUMBER_CHARS]} is out of range")
    return value


def values_above(text: bytes, most: int) -> int:
    """Return the number of values in a text if it exceeds `most`, else 0; never too low.

    The content of strings does not count. A list or object counts itself and its items.

    Args:
        text: JSON, or invalid text.
        most: The number allowed.
    """
    # Each value but the first has a comma or a bracket before it.
    if len(text) <= most or (count := _marks(text)) <= most:
        return 0
    if 0 in text:
        # Not UTF-8, so quotes and escapes are other bytes; `json` parses it nevertheless.
        return count
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # Strings are values or keys, so at most two for each value. Up to that number, removing them is fast.
    strings = bare.count(b'"') // 2
    if strings > 2 * most:
        return (strings + 1) // 2
    outside = b"".join(bare.split(b'"')[::2])
    count = _marks(outside)
    if count > most:
        # An empty list or object has one mark and is one value; as an item it has a comma before it, too.
        count -= sum(1 for _ in _EMPTY.finditer(outside))
    return count if count > most else 0


def _marks(text: bytes) -> int:
    # One pass over the bytes: counting each mark separately takes two to three times as long.
    return len(text.translate(None, _NO_MARKS))


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_LENIENT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, strict=False)
