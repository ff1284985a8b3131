"""JSON and nothing else: Python's reader without what it reads beyond that.

`json` takes `NaN` and `Infinity`, and makes an infinity of `1e999`; who is told of one in turn cannot be told
in JSON. A text that is nested too deeply for the interpreter is refused like one that is wrong.

Reading costs time and memory by the value and not by the byte: a megabyte may be one string, or a million
numbers. So values are counted before a text is read. That looks at each byte a few times, well-formed text or
not: a nanosecond a byte where there are few strings, and where there is little else about as long as it takes
to read them.

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
    """Return the value that a JSON text stands for.

    Args:
        text: The text.
        line_breaks: Take control characters in strings as they are, as models write them.

    Raises:
        ValueError: It is not JSON; the message says what is wrong and where.
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
    """Return of how many values a text is made if they are more than `most`, else 0; never too few.

    What stands inside strings does not count. A list or object counts for itself and for what it holds.

    Args:
        text: JSON, or what may be none.
        most: How many are allowed.
    """
    # Each value but the first has a comma or a bracket before it.
    if len(text) <= most or (count := _marks(text)) <= most:
        return 0
    if 0 in text:
        # No UTF-8, in which quotes and escapes are other bytes; `json` reads it nevertheless.
        return count
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # A value may have a key, and strings are nothing else. Where there are no more, taking them out is quick.
    strings = bare.count(b'"') // 2
    if strings > 2 * most:
        return (strings + 1) // 2
    outside = b"".join(bare.split(b'"')[::2])
    count = _marks(outside)
    if count > most:
        # What holds nothing has one mark and is one value; as an item it has the comma before it, too.
        count -= sum(1 for _ in _EMPTY.finditer(outside))
    return count if count > most else 0


def _marks(text: bytes) -> int:
    # One look at each byte: to count each mark for itself takes two to three times as long.
    return len(text.translate(None, _NO_MARKS))


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_LENIENT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, strict=False)
