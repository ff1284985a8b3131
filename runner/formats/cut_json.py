"""Reader of truncated JSON text, as models leave it when their answer ends early.

Only the end is restored: quotes and brackets are closed, a literal is completed, a number ends with its last
digit, and a member without a value is left out. If all brackets are present and only the quote before them is
missing, it is inserted. Text with an error before its end is refused, not guessed: arguments determine the
effect of a tool.

Source: rule A4 of the conformance cases; RFC 8259; `docs/decisions/0037-three-readers-measured.md`.
"""

import contextlib
import json
import logging
import re
from collections import deque
from typing import Any

import pydantic_core

from sandbox import strict_json

__all__ = ["parse_object", "read_beginning"]

_log = logging.getLogger(__name__)

# The parser's error if the only fault is the early end; its partial mode would skip any fault.
_CUT_OFF = "EOF while parsing"
# A string; the last one possibly without its end.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_HALF_WORD = re.compile(r"(?<![^\s:,\[])(?:t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?)\Z")
_WORDS = {"t": "true", "f": "false", "n": "null"}
# The start of a truncated number that is not yet a number.
_HALF_NUMBER = re.compile(r"(?<=\d)(?:\.|[eE][+-]?)\Z")
_CONTROL = re.compile(r"[\0-\x1f]")
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)}
_BRACKETS = (("{", "}"), ("[", "]"))


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object of `text`, which may be truncated. Blank text is an empty object.

    Raises:
        ValueError: It is not JSON; the message has the fault and its place.
    """
    if not text.strip():
        return {}
    try:
        value = strict_json.loads(text, line_breaks=True)
    except ValueError as error:
        try:
            value = read_beginning(text)
        except ValueError:
            raise error from None
        _log.warning("truncated arguments completed", extra={"chars": len(text)})
    if not isinstance(value, dict):
        raise ValueError("arguments must be one JSON object")  # noqa: TRY004 - the text is at fault
    return value


def read_beginning(text: str) -> Any:
    """Return the value of a truncated JSON text.

    Raises:
        ValueError: The text has an error before its end, or is complete.
    """
    # This parser refuses literal line breaks in strings, which models write.
    plain = _STRING.sub(lambda string: string[0].translate(_ESCAPES), text) if _CONTROL.search(text) else text
    try:
        pydantic_core.from_json(plain)
    except ValueError as error:
        if not str(error).startswith(_CUT_OFF):
            raise
    else:
        raise ValueError("the JSON is whole")
    if plain.rstrip().endswith(("}", "]")):
        with contextlib.suppress(ValueError):
            return strict_json.loads(_quoted(plain.rstrip()))
    value = pydantic_core.from_json(_finished(plain), allow_partial="trailing-strings")
    # The parser turns a number that is out of range into an infinity.
    json.dumps(value, allow_nan=False)
    return value


def _finished(text: str) -> str:
    """Return the text with its last literal completed or its last number ended, if truncated there."""
    around = _STRING.sub("", text)
    word, number = _HALF_WORD.search(around), _HALF_NUMBER.search(around)
    if word is not None and text.endswith(word[0]):
        return text.removesuffix(word[0]) + _WORDS[word[0][0]]
    if number is not None and text.endswith(number[0]):
        return text.removesuffix(number[0])
    return text


def _quoted(text: str) -> str:
    """Return the text with a quote before its final brackets, if they close the JSON, not within a string."""
    last = deque(_STRING.finditer(text), maxlen=1)
    around = _STRING.sub("", text)
    missing = sum(around.count(opening) - around.count(closing) for opening, closing in _BRACKETS)
    end = len(text) - missing
    literal = text[last[0].start() : end] if last else ""
    closed = all(literal.count(opening) <= literal.count(closing) for opening, closing in _BRACKETS)
    return f'{text[:end]}"{text[end:]}' if literal and closed else text
