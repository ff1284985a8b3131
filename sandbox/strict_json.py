"""JSON and nothing else: Python's reader without what it reads beyond that.

`json` takes `NaN` and `Infinity`, and makes an infinity of `1e999`; who is told of one in turn cannot be told
in JSON. A text that is nested too deeply for the interpreter is refused like one that is wrong.

Source: RFC 8259, section 6.
"""

import json
import math
from typing import NoReturn

__all__ = ["loads"]

_NUMBER_CHARS = 40


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


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_LENIENT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, strict=False)
