"""Binary content written as text: base64 of either alphabet, hexadecimal digits, data: URLs.

Decoding is strict: line breaks are allowed, blanks are not, padding is optional. Content is always decoded
as a whole.

Source: RFC 4648; RFC 2397; rules N9 and X2 of the conformance cases.
"""

import binascii
import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from urllib.parse import unquote

import pybase64

from runner.formats.base64 import strict, url_body
from runner.formats.magic import BASE64_PREFIXES, MAGIC_BYTES, PROBE_BYTES, begins, identify, magic_numbers

__all__ = [
    "LIST_CHARS",
    "LIST_CLASS",
    "Suspects",
    "beginnings",
    "data_url",
    "decode",
    "extents",
    "head",
    "line_end",
    "seem_parts",
    "seems_encoded",
    "unhex",
]

_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_CLASS = "A-Za-z0-9+/_-"
# Base64 in JSON, HTML and URLs: `\/`, `\u002b`, `&#43;`, `%2F`.
_ESCAPES = r"\\{1,8}+(?:/|u00(?:2[bBfF]|3[dD]))|%(?:2[bBfF]|3[dD])|=3D|&#(?:x2[bBfF]|x3[dD]|43|47|61);"
_ESCAPE = re.compile(_ESCAPES)
# Characters of lists of numbers.
LIST_CHARS = "0123456789abcdefABCDEFxXuhnrty\\&#$%;,:|\"'[](){}_- \t\r\n"
LIST_CLASS = re.escape(LIST_CHARS)
_LINE = re.compile(rf"(?:[{_CLASS}]++|(?=[\\%&])(?:{_ESCAPES}))++")
_PADDING = re.compile(r"(?:=3D|\\{1,8}+u003[dD]|%3[dD]|&#(?:x3[dD]|61);|=(?!3D)){0,2}")
# Text between two lines: a line break, possibly escaped, and an indent or a quote mark of mail; or the end of
# a literal and the beginning of the next. It does not vary within a file.
_BREAK = r"=?(?:\r?\n|(?:\\{1,8}+r)?\\{1,8}+n|&#(?:10|xA|xa);|<br ?/?>(?:\r?\n)?)"
_QUOTE = r"\\*[\"']"
_GLUE = re.compile(
    rf"{_QUOTE}[ \t]*+[,+.&\\]?[ \t]*+(?:{_BREAK})?[ \t]*+(?:[+.&,][ \t]*+)?[bBrRuU]?{_QUOTE}"
    rf"|\\?{_BREAK}[ \t>#*|]{{0,64}}"
)
_WIDTH_MAX = 260
_LINE_MIN = 20
_PIECE_MIN = 32
_ENCODED = re.compile(rf"[=\r\n{_CLASS}]+")
# A file may begin after a word, but not after a page of words.
_WORD_MAX = 256
_LONG_LINE = re.compile(rf"(?=[=\\%&#;{_CLASS}]{{{_PIECE_MIN}}}){_LINE.pattern}")
# Enough to recognise a tar, whose magic number is not at the beginning.
_TAR_CHARS = 360
_HEX_START = re.compile(r"(?:0?[xX])?[0-9a-fA-F]{32}")
_HEAD_CHARS = (PROBE_BYTES + 2) // 3 * 4
# A line of 64 or 76 characters needs one or two more for its break.
_HEAD_SLICE = _HEAD_CHARS * 66 // 62
_LOOK_CHARS = 64
# Least encoded content that a quick look at one place must find, and how far it looks.
_AHEAD_CHARS = 300
_SAMPLE_AHEAD_CHARS = 170
_LINE_AHEAD_CHARS = 96
_BEFORE_LINE = rf"[{_CLASS}]{{0,40}}+(?:(?!{_ESCAPES})[^A-Za-z0-9]{{1,24}}+n?)?"
_ESCAPED_CHAR = rf"(?=[\\%&])(?:{_ESCAPES})"
_LINE_LOOK = rf"(?:[{_CLASS}]{{0,80}}+{_ESCAPED_CHAR}){{0,4}}+[{_CLASS}]{{16}}"
_ESCAPED = r"(?:[^\\]{0,24}+\\{1,8}+(?:x[0-9a-fA-F]{2}|u00[0-9a-fA-F]{2}|[0-3][0-7]{2})){3}"
_LISTED = (
    r"[0-9A-Za-z]{0,20}+(?:[^0-9A-Za-z]{1,9}+(?:0[xX]|byte\) ?0[xX])?[0-9a-fA-F]{1,16}"
    r"(?:_?u8|h)?(?![0-9A-Za-z])){4}"
)
_LOOK = re.compile(
    rf"(?P<run>{_BEFORE_LINE}(?P<line>{_LINE_LOOK}))|(?P<escaped>{_ESCAPED})|(?P<listed>{_LISTED})"
)
# A place within a line that continues, or is followed by another. A blank after a word is searched first:
# skipping to a single character is much faster than skipping to any of a set.
_BEHIND_LINE = r"(?=[\\\r\n\"'=&<%])"
_RUN = (
    rf"(?![^ ]{{1,119}}+(?<=[A-Za-z0-9]) )"
    rf"[^A-Za-z0-9]{{0,90}}+(?:r\\{{1,8}}+n)?[{_CLASS}]{{0,120}}+(?:[{_CLASS}]|\Z|{_BEHIND_LINE}"
    rf"(?:{_ESCAPED_CHAR}|(?:{_GLUE.pattern})"
    rf"(?:[{_CLASS}]{{16,120}}+(?:[{_CLASS}]|{_BEHIND_LINE})|[{_CLASS}]{{0,40}}+{_ESCAPED_CHAR})))"
)
_NO_LIST = re.compile(f"{_RUN}|{_ESCAPED}")
# A place in the cells of a dump, and one beside the cells.
_SEPARATOR = r"[ \t:|│┊<\-]{1,4}+"
_CELLS = rf"(?:[0-9a-fA-FxX]{{0,16}}+{_SEPARATOR}){{2}}(?:0[xX])?[0-9a-fA-F]{{2,16}}+[ \t:|│┊\-\r\n\\\"]"
_ROW = (
    r"(?:[^\n]{0,96}+\n|[^\\]{0,96}+\\(?:(?!n)[^\\]{0,96}+\\){0,8}n)"
    rf"(?=[ \t|│┊]{{0,16}}+(?:0[xX])?[0-9a-fA-F]{{4,16}}+[:h \t|│┊<]){_LISTED}"
)
# A list may begin in the middle of a number.
_LIST_SLACK = 20
_STRETCHES = (range(8), range(20, 28), range(34, 42))
_SAMPLES_MIN = 64
_RUN_BIT, _LIST_BIT, _CELL_BIT, _BETWEEN_BIT, _ESCAPE_BIT, _STRANGE_BIT, _DOT_BIT, _QUOTE_BIT = range(8)


def _flags(char: str) -> int:
    """Return a bit for each of the parts of writings in which a character occurs."""
    is_listed = char in LIST_CHARS
    bits = (
        char in f"{_CHARS}\\%&=#;",
        is_listed,
        # Characters outside Latin-1 become question marks.
        char in "0123456789abcdefABCDEFxXh:|- \t\r\n\\?",
        char == "?" or (is_listed and not char.isalnum()),
        char == "\\",
        # Neither in a line of base64 nor between two lines.
        char not in f"{_CHARS}\\%&=#;\"' \t\r\n,.*|<>",
        char == ".",
        char in "\"'",
    )
    return sum(is_so << bit for bit, is_so in enumerate(bits))


_FLAGS = bytes(map(_flags, map(chr, range(256))))


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
    return strict(body)


def head(text: str, start: int = 0) -> bytes:
    """Return the first bytes of base64 that begins at `start`, as far as it is base64."""
    piece = _one_line(text[start : start + _HEAD_SLICE])
    piece = piece[: min(_HEAD_CHARS, len(piece)) // 4 * 4]
    found = strict(piece)
    # The base64 may end soon, or be followed by other text.
    shorter = (strict(piece[:chars]) for chars in (400, 64) if found is None)
    return next((each for each in (found, *shorter) if each is not None), b"")


def unhex(text: str, *, probe: bool = False) -> bytes | None:
    """Return the bytes of hexadecimal digits, or of the first of them; None if `text` is not hexadecimal."""
    start = _HEX_START.match(text)
    if start is None:
        return None
    body = text[len(start[0]) - 32 :]
    body = body[: 2 * PROBE_BYTES] if probe else _one_line(body)
    try:
        # Truncated digits may end within a byte.
        return binascii.unhexlify(body[: len(body) // 2 * 2])
    except (binascii.Error, ValueError):
        return bytes.fromhex(start[0][-32:]) if probe else None


def cut(text: str, limit: int) -> str:
    """Return the first `limit` characters of `text`, or fewer if the cut itself would create a file.

    Text that is not base64 only because of its length can become base64 when it is shortened.
    """
    short = text[:limit]
    if len(short) == len(text):
        return text
    start = len(short.rstrip(_CHARS))
    return short if identify(head(short, start)) is None else short[:start]


def data_url(text: str) -> str | None:
    """Return the base64 of a `data:` URL, or None if `text` is not such a URL."""
    body = url_body(text)
    return unquote(body) if body and "%" in body else body


class Suspects:
    """Suspect places of a text, so close that content of `at_least` characters cannot fit between them.

    Each is the kind of content that a quick look found (a `run` of base64 or hexadecimal digits, numbers that
    are `listed`, or `escaped` bytes of a literal), and its index.

    Attributes:
        text: The text.
        at_least: Shorter content is ignored.
        listed_to: Index before which no list of numbers is searched; set to the end of each list read.
        behind: How far before a place its content may begin.
    """

    def __init__(self, text: str, at_least: int) -> None:
        self.text = text
        self.at_least = at_least
        self.listed_to = 0
        ahead = min(_SAMPLE_AHEAD_CHARS, at_least // 2)
        step = max(min(at_least, len(text) + 1) - ahead, 1)
        self.behind = 2 * step
        self._places = _places(text, step, max(ahead - _LIST_SLACK, 1))

    def __iter__(self) -> Iterator[tuple[str, int]]:
        text = self.text
        self.listed_to = 0
        for place in self._places:
            if place < self.listed_to and _NO_LIST.match(text, place) is None:
                continue
            look = _LOOK.match(text, place)
            if look is None:
                # The column beside a dump, and a short last line, may contain anything.
                line = text.find("\n", place, place + _LINE_AHEAD_CHARS) + 1
                if not line:
                    escaped = text.find("\\n", place, place + _LINE_AHEAD_CHARS)
                    line = escaped + 2 if escaped >= 0 else 0
                look = _LOOK.match(text, line) if line else None
            if look is not None and (look["run"] is None or goes_on(text, look.start("line"), self.at_least)):
                yield "run" if look["run"] else look.lastgroup or "", look.start()


def _places(text: str, step: int, listed: int) -> list[int]:
    """Return each `step`-th place of a text at which content may be.

    First, all places are judged at once by the characters after them: one integer has a byte for each place.
    In each notation, one of three short stretches is free of line breaks, indents and the column beside a
    dump.

    Args:
        text: The text.
        step: Characters from one place to the next.
        listed: Characters of a list of numbers that follow a place in it.
    """
    places = [*range(0, len(text), step)]
    looks = _quick_looks(listed)
    count = max((len(text) - _STRETCHES[-1].stop) // step, 0)
    if count < _SAMPLES_MIN:
        count = 0
    every = int.from_bytes(b"\1" * count, "little")
    lists, runs, cells, anywhere, strange = every, 0, 0, 0, 0
    for stretch in _STRETCHES if count else ():
        common, some = every * 0xFF, 0
        for offset in stretch:
            chars = text[offset : offset + step * count : step].encode("latin-1", "replace")
            flags = int.from_bytes(chars.translate(_FLAGS), "little")
            common &= flags
            some |= flags
        runs |= common >> _RUN_BIT
        lists &= common >> _LIST_BIT
        cells |= common >> _CELL_BIT & some >> _RUN_BIT & some >> _BETWEEN_BIT
        anywhere |= some
        # A dot joins two literals of PHP.
        strange |= some >> _STRANGE_BIT | some >> _DOT_BIT & ~(some >> _QUOTE_BIT)
    runs &= ~strange
    lists &= anywhere >> _RUN_BIT & anywhere >> _BETWEEN_BIT
    found: set[int] = set()
    for flags, look in zip((runs, lists, cells, anywhere >> _ESCAPE_BIT), looks, strict=True):
        tried = [*itertools.compress(places, (flags & every).to_bytes(count, "little"))]
        found.update(itertools.compress(tried, map(look, itertools.repeat(text), tried)))
    found.update(place for place in places[count:] if any(look(text, place) for look in looks))
    return sorted(found)


@cache
def _quick_looks(listed: int) -> tuple[Callable[[str, int], object], ...]:
    """Return matchers for signs of content in a text: runs, lists of numbers, dumps, escapes."""
    patterns = (_RUN, rf"[{LIST_CLASS}]{{{listed}}}", f"{_CELLS}|{_ROW}", _ESCAPED)
    return tuple(re.compile(pattern).match for pattern in patterns)


def goes_on(text: str, start: int, at_least: int) -> bool:
    """Return whether a line of base64 is long or followed by another, unlike a digest."""
    long = min(_WIDTH_MAX, at_least - _LOOK_CHARS)
    line = _LINE.match(text, start, min(len(text), start + 2 * _WIDTH_MAX))
    end = line.end() if line else start
    glue = _GLUE.match(text, end) if end - start < long else None
    return end - start >= long or (glue is not None and _LINE.match(text, glue.end()) is not None)


def line_end(text: str, start: int) -> int:
    """Return the end of the base64 line around `start`."""
    line = _LINE.match(text, start)
    return line.end() if line else start


def seem_parts(items: list[Any]) -> bool:
    """Return whether a list's items may form one content: bytes, rows of bytes, lines of digits."""
    first = items[0]
    if type(first) is str:
        return all(type(item) is str for item in items[:8]) and _LOOK.match("\n".join(items[:8])) is not None
    try:
        return type(first) is int or (type(first) is list and begins(bytes(_first_numbers(items))))
    except (ValueError, TypeError):
        return False


def _first_numbers(items: list[Any]) -> list[int]:
    while items[0] and type(items[0][0]) is list:
        items = items[0]
    row = (
        items[0]
        if len(items[0]) >= MAGIC_BYTES
        else [number for row in items[:MAGIC_BYTES] for number in row]
    )
    return [number & 0xFF if -128 <= number < 0 else number for number in row[:MAGIC_BYTES]]


def beginnings(text: str, start: int, stop: int, *, in_line: bool) -> Iterator[int]:
    """Yield likely starts of base64 or hexadecimal digits of a known format.

    Args:
        text: The text.
        start: Look from here.
        stop: Look to here.
        in_line: Whether one may begin at `start` itself, although that is within a line.
    """
    for line in _LONG_LINE.finditer(text, start, min(len(text), stop + _AHEAD_CHARS)):
        first, end = line.span()
        if end - first < _PIECE_MIN or (
            first == start and not in_line and start and text[start - 1] in _CHARS
        ):
            continue
        if text[first - 1 : first] == "\\" and text[first] in "nrt":
            first += 1
        if may_begin(text[first : first + 4]):
            digits = _ESCAPE.sub(_character, text[first : first + 3 * _PIECE_MIN])
            if begins(head(digits[: 2 * _PIECE_MIN])) or begins(unhex(digits, probe=True) or b""):
                yield first
                continue
        if end - first > _TAR_CHARS and identify(head(text, first)):
            yield first
        elif end - first > _LOOK_CHARS + 4:
            # The word before it could be base64 as well.
            word = text[first : min(end, first + _WORD_MAX)]
            yield from sorted(first + at for prefix in BASE64_PREFIXES if (at := word.find(prefix, 1)) > 0)


@cache
def _first_chars() -> frozenset[str]:
    """Return the first characters of magic numbers: two of base64, four hexadecimal digits."""
    found = {"AA", "\\/", "\\u", "%2", "&#"}
    for magic in magic_numbers():
        for second in range(256) if len(magic) == 1 else magic[1:2]:
            start = bytes((magic[0], second))
            found |= {pybase64.urlsafe_b64encode(start).decode()[:2], pybase64.b64encode_as_string(start)[:2]}
            found.add(start.hex())
    return frozenset(found)


def may_begin(text: str) -> bool:
    """Return whether a text may begin with encoded content of a known format: the quickest look."""
    known = _first_chars()
    return (
        text[:2] in known
        or text.lower() in known
        or (text[:2] == "0x" or text[0] in "xX" or text[:2] == "00")
    )


def extents(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield likely ends of content that begins at `start`, with its characters alone; the longest first."""
    line = _LINE.match(text, start)
    if line is None:
        return
    end = line.end()
    width = len(_ESCAPE.sub(".", line[0])) if end - start <= 6 * _WIDTH_MAX else end - start
    glue = _GLUE.match(text, end)
    between = glue[0] if glue else ""
    if not between or width > _WIDTH_MAX:
        yield _whole(text, start, end, "")
        # A file may end where a wrapped one begins.
        wrapped = len(following[0]) if between and (following := _LINE.match(text, end + len(between))) else 0
        if _LINE_MIN <= wrapped <= _WIDTH_MAX:
            yield _whole(text, start, end - wrapped, "")
        return
    full, lines = end, 1
    while (line := _LINE.match(text, end + len(between))) is not None:
        size = len(line[0]) if line.end() - line.start() == width else len(_ESCAPE.sub(".", line[0]))
        if lines == 1 and size > width:
            # The first line began after a word.
            width = size
        if size > width or (size < width and text[line.end() : line.end() + 1] == " "):
            break
        end, lines = line.end(), lines + 1
        if size < width or not text.startswith(between, end):
            break
        full = end
    yield _whole(text, start, end, between)
    if full < end:
        yield _whole(text, start, full, between)


def _whole(text: str, start: int, end: int, between: str) -> tuple[int, str]:
    padding = _PADDING.match(text, end)
    end = padding.end() if padding else end
    body = text[start:end]
    if between:
        body = body.replace(between, "")
    return end, _ESCAPE.sub(_character, body) if any(
        char in body for char in "\\%&"
    ) or "=3D" in body else body


def _character(escape: re.Match[str]) -> str:
    code = escape[0].lower()
    if code[-1] == "/" or "2f" in code or "47" in code:
        return "/"
    return "+" if "2b" in code or "43" in code else "="


def seems_encoded(text: str) -> bool:
    """Return whether `text` may begin with encoded content: a quick look, before any decoding."""
    start = _ENCODED.match(text, 0, _LOOK_CHARS)
    return start is not None and start.end() == min(_LOOK_CHARS, len(text))


def _one_line(text: str) -> str:
    if "\n" in text or "\r" in text:
        text = text.replace("\r", "").replace("\n", "")
    if "-" in text or "_" in text:
        text = text.replace("-", "+").replace("_", "/")
    return text
