"""Binary content written as text: base64 of either alphabet, hexadecimal digits, data: URLs.

Decoding is strict: line breaks are allowed, blanks are not, padding is optional. Nothing is cut: what is
decoded is decoded whole.

Source: RFC 4648; RFC 2397; rules N9 and X2 of the conformance cases.
"""

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import pybase64

from runner.formats.base64 import url_body
from runner.formats.magic import PROBE_BYTES, identify

__all__ = [
    "Span",
    "data_url",
    "decode",
    "has_stretch",
    "head",
    "is_one_line",
    "long_runs",
    "seems_encoded",
    "unhex",
    "wrapped_blocks",
]

# What base64 consists of, also where it stands inside JSON text, as `\\/` and `\\n`.
_CLASS = r"A-Za-z0-9+/_=\\\r\n-"
_RUN = re.compile(f"[{_CLASS}]+")
_LINE = re.compile("[A-Za-z0-9+/_-]+")
_STRIP_LINE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_STRIP = _STRIP_LINE + "=\\\r\n"
_PADDING = re.compile("={0,2}")
# The length of a line of wrapped base64, with its break.
_LINE_MIN, _LINE_MAX = 20, 260
_HEX_START = re.compile(r"(?:0[xX])?[0-9a-fA-F]{32}")
_HEAD_CHARS = (PROBE_BYTES + 2) // 3 * 4
# A line of 64 or 76 characters needs one or two more for its break.
_HEAD_SLICE = _HEAD_CHARS * 66 // 62
_LOOK_CHARS = 64


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, from `start` up to but not including `end`."""

    start: int
    end: int


def decode(text: str) -> bytes | None:
    """Return the bytes of base64 `text`, or None if it is not strictly base64."""
    if not text.isascii():
        return None
    body = _one_line(text)
    missing = -len(body) % 4
    if missing == 3 or (missing and body.endswith("=")):
        return None
    if missing:
        body += "=" * missing
    try:
        return pybase64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None


def head(text: str, start: int = 0) -> bytes:
    """Return the first bytes of base64 that begins at `start`, as far as it is base64."""
    piece = _one_line(text[start : start + _HEAD_SLICE])
    piece = piece[: min(_HEAD_CHARS, len(piece)) // 4 * 4]
    try:
        return pybase64.b64decode(piece, validate=True)
    except (binascii.Error, ValueError):
        return _shorter_head(piece)


def unhex(text: str, *, probe: bool = False) -> bytes | None:
    """Return the bytes of hexadecimal digits, or of the first of them; None if `text` is none."""
    start = _HEX_START.match(text)
    if start is None:
        return None
    body = text[2 if start[0][1] in "xX" else 0 :]
    body = body[: 2 * PROBE_BYTES] if probe else _one_line(body)
    try:
        return binascii.unhexlify(body[: len(body) // 2 * 2] if probe else body)
    except (binascii.Error, ValueError):
        return bytes.fromhex(start[0][-32:]) if probe else None


def cut(text: str, limit: int) -> str:
    """Return the first `limit` characters of `text`, or fewer where the cut itself would make a file appear.

    What is no base64 for its length can become some when it is shortened.
    """
    short = text[:limit]
    if len(short) == len(text):
        return text
    start = len(short.rstrip(_STRIP_LINE))
    return short if identify(head(short, start)) is None else short[:start]


def data_url(text: str) -> str | None:
    """Return the base64 of a `data:` URL, or None if `text` is no such URL."""
    body = url_body(text)
    return unquote(body) if body and "%" in body else body


def has_stretch(text: str, at_least: int) -> bool:
    """Say whether `at_least` characters without a blank among them follow each other somewhere."""
    start, end = 0, len(text)
    while end - start >= at_least:
        # From behind: in prose the next blank is near, and all before it is passed over.
        blank = text.rfind(" ", start, start + at_least)
        if blank < 0:
            return True
        start = blank + 1
    return False


def long_runs(text: str, at_least: int, within: Span | None = None) -> Iterator[Span]:
    """Yield every longest stretch of characters that encoded content consists of, if long enough.

    Only every so-manieth character is looked at first: a stretch of `at_least` cannot hide between.

    Args:
        text: The text.
        at_least: Length in characters.
        within: Look only here, for stretches that are one line of base64; None: everywhere, and line breaks
            and what JSON makes of characters belong to a stretch.
    """
    run_at, strip = (_RUN, _STRIP) if within is None else (_LINE, _STRIP_LINE)
    end, stop = (0, len(text)) if within is None else (within.start, within.end)
    step = max(1, at_least // 2)
    position = end + step - 1
    while position < stop:
        run = run_at.match(text, position, stop)
        if run is None or (run.end() < position + step and run.end() < stop):
            position += step
            continue
        before = text[max(end, position - step) : position]
        start = position - len(before) + len(before.rstrip(strip))
        end = run.end()
        if end - start >= at_least:
            yield Span(start, end)
        position += step * ((end - position) // step + 1)


def wrapped_blocks(text: str, within: Span, at_least: int) -> Iterator[Span]:
    """Yield where lines of equal length follow each other for long enough; the last may be shorter.

    Args:
        text: The text.
        within: Look only here.
        at_least: Length of a block in characters.
    """
    step = max(1, at_least // 2)
    position = within.start
    while position < within.end:
        first = text.find("\n", position, min(within.end, position + _LINE_MAX))
        second = text.find("\n", first + 1, within.end) if first >= 0 else -1
        width = second - first
        if second < 0 or width > _LINE_MAX or width < _LINE_MIN:
            position += step
            continue
        start, end = _block(text, within, first, width)
        if end - start >= at_least:
            yield Span(start, end)
        position = max(position + step, end)


def _block(text: str, within: Span, first: int, width: int) -> tuple[int, int]:
    """Return the block of lines `width` long, with their breaks, of which one ends at `first`."""
    begin = first
    while begin - width >= within.start and text[begin - width] == "\n":
        begin -= width
    while first + width < within.end and text[first + width] == "\n":
        first += width
    body = width - (2 if text[begin - 1 : begin] == "\r" else 1)
    start = begin - (width - 1) if begin - (width - 1) >= within.start else within.start
    last = _LINE.match(text, first + 1, min(within.end, first + 1 + body))
    padding = _PADDING.match(text, last.end() if last else first + 1, within.end)
    return start, padding.end() if padding else first


def seems_encoded(text: str) -> bool:
    """Say whether `text` begins as encoded content may: a quick look, before any decoding."""
    start = _RUN.match(text, 0, _LOOK_CHARS)
    return start is not None and start.end() == min(_LOOK_CHARS, len(text))


def is_one_line(text: str, run: Span) -> bool:
    """Say whether a run has neither breaks nor padding before its end."""
    tail = text[max(run.start, run.end - 2) : run.end]
    end = run.end - len(tail) + len(tail.rstrip("="))
    return all(text.find(char, run.start, end) < 0 for char in "\n\r\\=")


def _one_line(text: str) -> str:
    if "\n" in text or "\r" in text:
        text = text.replace("\r", "").replace("\n", "")
    if "-" in text or "_" in text:
        text = text.replace("-", "+").replace("_", "/")
    return text


def _shorter_head(piece: str) -> bytes:
    """Return what a short beginning decodes to, for text that ends or turns into something else soon."""
    for chars in (400, 64):
        try:
            return pybase64.b64decode(piece[:chars], validate=True)
        except (binascii.Error, ValueError):
            continue
    return b""
