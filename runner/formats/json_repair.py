"""JSON text that was cut off, as models leave it when their answer ends early, read as far as it goes.

Only an end is put back: quotes and brackets are closed, a literal is completed, and a member whose value
never came is left out. Where all brackets are there and only the quote before them is missing, it is put
there. Text that is wrong in its middle is refused, not guessed at: arguments decide
what a tool does.

Source: rule A4 of the conformance cases; RFC 8259.
"""

import json
import logging
import math
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

__all__ = ["complete", "finite", "parse_object", "refuse_constant"]

_log = logging.getLogger(__name__)

_CLOSING = {"{": "}", "[": "]"}
_STRING = re.compile(r'"(?:[^"\\]|\\(?:[^u]|u[0-9A-Fa-f]{4}))*', re.DOTALL)
_BETWEEN = re.compile(r'[^"{}\[\],]+')
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9A-Fa-f]{0,3})?\Z")
# Half of a character that is written as two escapes.
_HALF_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9A-Fa-f]{2}\Z")
_HALF_NUMBER = re.compile(r"(?<=\d)(?:\.|\.?[eE][+-]?)\Z")
_WORDS = ("true", "false", "null")
_WORD = re.compile(r"(?<![a-z])[a-z]{1,5}\Z")
# What of a member may stand at the end without its value: a comma, a key, a colon, a sign.
_DANGLING = re.compile(r'\s*+,?\s*+(?:"(?:[^"\\]|\\.)*+\\?"?\s*+(?::\s*+-?)?|-)?\s*+\Z', re.DOTALL)
_NUMBER_CHARS = 40


@dataclass(slots=True)
class _Scan:
    """Where a text ends.

    Attributes:
        open: The brackets not yet closed.
        string_start: Where the string begins in which the text ends.
        string_end: Where the last whole character of the string ends in which the text ends, or None.
        cut: Where the last member begins, its comma included.
        sound: Whether brackets match so far.
    """

    open: list[str] = field(default_factory=list)
    string_start: int = 0
    string_end: int | None = None
    cut: int = 0
    sound: bool = True


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object that `text` is, or was before it was cut off. Blank text is an empty object.

    Raises:
        ValueError: It is none; the message says what is wrong and where.
    """
    if not text.strip():
        return {}
    try:
        value = _loads(text)
    except ValueError:
        completed = complete(text)
        if completed is None:
            raise
        value = _loads(completed)
        _log.warning("arguments were cut off and completed", extra={"chars": len(text)})
    if not isinstance(value, dict):
        raise ValueError("arguments must be one JSON object")  # noqa: TRY004 - the text is at fault
    return value


def complete(text: str) -> str | None:
    """Return JSON text with its missing end; None if that is not what it lacks."""
    scan = _scan(text)
    if not scan.sound or not scan.open:
        return None
    closing = "".join(_CLOSING[bracket] for bracket in reversed(scan.open))
    for candidate in _candidates(text, scan, closing):
        try:
            _loads(candidate + closing)
        except ValueError:
            continue
        return candidate + closing
    return None


def _candidates(text: str, scan: _Scan, closing: str) -> list[str]:
    """Return ways to end the text before its brackets are closed; the one that keeps most comes first."""
    left_out = [text[: scan.cut]] if _DANGLING.match(text, scan.cut) else []
    if scan.string_end is not None:
        kept = text[: scan.string_end] if _HALF_ESCAPE.match(text, scan.string_end) else text
        cut_off = _HALF_PAIR.sub(r"\1", kept) + '"'
        unquoted = _without_closing(text, scan.string_start, closing)
        return [cut_off, *left_out] if unquoted is None else [f'{unquoted}"', cut_off, *left_out]
    word = _WORD.search(text)
    words = [text[: word.start()] + full for full in _WORDS if word and full.startswith(word[0])]
    return [text, *words, _HALF_NUMBER.sub("", text), *left_out]


def _without_closing(text: str, start: int, closing: str) -> str | None:
    """Return the text without its brackets at the end, if they close the JSON and not what a string says."""
    body = text.rstrip()
    if len(body) - len(closing) <= start or not body.endswith(closing):
        return None
    kept = body.removesuffix(closing)
    said = kept[start:]
    balanced = all(said.count(opening) <= said.count(end) for opening, end in _CLOSING.items())
    return kept if balanced else None


def _scan(text: str) -> _Scan:
    scan, position = _Scan(), 0
    while position < len(text) and scan.sound:
        char = text[position]
        if char == '"':
            match = _STRING.match(text, position)
            end = match.end() if match else position + 1
            if text[end : end + 1] != '"':
                # A backslash that the pattern did not take is half an escape, or one that JSON lacks.
                scan.string_start, scan.string_end = position, end
                return scan
            position = end + 1
        elif char in "{[}],":
            _step(scan, char, position)
            position += 1
        else:
            match = _BETWEEN.match(text, position)
            position = match.end() if match else position + 1
    return scan


def _step(scan: _Scan, char: str, position: int) -> None:
    if char in _CLOSING:
        scan.open.append(char)
        scan.cut = position + 1
    elif char == ",":
        scan.cut = position
    else:
        scan.sound = bool(scan.open) and _CLOSING[scan.open.pop()] == char


def _loads(text: str) -> Any:
    try:
        # Not strict: models write line breaks into strings as they are.
        return json.loads(text, strict=False, parse_constant=refuse_constant, parse_float=finite)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def refuse_constant(constant: str) -> NoReturn:
    """Refuse `NaN` and `Infinity`, which Python's `json` reads and JSON lacks.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{constant} is no JSON value")


def finite(number: str) -> float:
    """Read a number of a JSON text.

    Raises:
        ValueError: It is beyond what a float holds, and would be read as an infinity.
    """
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:_NUMBER_CHARS]} is out of range")
    return value
