r"""Bytes written one by one: hex dumps, lists of numbers, escapes of string literals.

    00000000: 8950 4e47 0d0a 1a0a  .PNG....     `dumped`: xxd, hexdump -C, od -t x1, Format-Hex
    [137, 80, 78, 71]   0x89, 0x50   89:50:4e   `listed`: JSON arrays, C initialisers, pairs of digits
    b'\x89PNG\r\n'   "\u0089PNG"   \211PNG      `escaped`: repr of Python, JSON, C, shells

Each reader gets a text and an index in it, and returns the span and the bytes of a known binary format.
The beginning decides: a list of digests or of pixels is checked once and stays.
"""

import binascii
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.formats.magic import MAGIC_BYTES, begins, first_bytes
from runner.output_guard.encoded import LIST_CHARS, LIST_CLASS

__all__ = ["Written", "as_bytes", "dumped", "escaped", "listed"]


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes written in a text from `start` up to but not including `end`."""

    start: int
    end: int
    content: bytes


# A file may follow other numbers, such as a time of day, but not a page of them.
_STARTS_MAX = 16
# Fewer different negatives are markers such as -1 among other numbers.
_NEGATIVES_MIN = 8
_BEGINNING_CHARS = 600
_LIST = re.compile(rf"[{LIST_CLASS}]*+")
_OPEN, _CLOSED = r"(?<![0-9A-Za-z.])", r"(?![0-9A-Za-z]|\.[0-9])"
_BETWEEN = r"(?:[\s,:|'\";_]|\\+[nrt](?![a-z])|[\])}]\s*,?\s*[\[({])*+"
_PREFIX = r"(?:(?:\(byte\) ?)?(?:0[xX]|&#[xX]?|[$#%]))?"


@dataclass(frozen=True, slots=True)
class _Form:
    """A notation of a list of bytes: one number with its digits as the only group, and all that follow."""

    number: re.Pattern[str]
    run: re.Pattern[str]
    base: int

    def values(self, digits: Sequence[str]) -> list[bytes]:
        """Return the bytes of each number.

        Raises:
            ValueError: One is not a byte.
        """
        if self.base == 16:
            return [binascii.unhexlify(each if len(each) % 2 == 0 else "0" + each) for each in digits]
        return [bytes((each + 256 if -128 <= each < 0 else each,)) for each in map(int, digits)]


def _form(before: str, digits: str, behind: str, between: str, base: int) -> _Form:
    number = re.compile(f"{before}({digits}){behind}")
    return _Form(number, re.compile(f"(?:{before}(?:{digits}){behind}{between})*+"), base)


def as_bytes(numbers: Sequence[int]) -> bytes:
    """Return numbers as bytes; also signed ones from -128, as in Java and Int8Array.

    Raises:
        ValueError: They are not bytes.
    """
    if not numbers or min(numbers) >= 0:
        return bytes(numbers)
    if (
        min(numbers) < -128
        or max(numbers) > 127
        or len({each for each in numbers if each < 0}) < _NEGATIVES_MIN
    ):
        raise ValueError("not bytes")
    return bytes(each & 0xFF for each in numbers)


_FORMS = (
    _form(rf"(?<!-){_OPEN}(?:&#)?", "-?[0-9]{1,3}", _CLOSED, _BETWEEN, 10),
    _form(
        _OPEN + _PREFIX,
        "(?:[0-9a-fA-F]{2}){1,8}|(?<=[xX])[0-9a-fA-F]",
        f"(?:_?u8|[hH])?{_CLOSED}",
        _BETWEEN.replace("[\\s", "[-\\s", 1),
        16,
    ),
    _form(r"\b[0-9]{1,8}\b[\"'\\]*\s?:\s?", "[0-9]{1,3}", _CLOSED, r"(?:[\s,\"']|\\+[nrt\"'])*+", 10),
)


def listed(text: str, lo: int, at: int, at_least: int) -> tuple[Written | None, int]:
    """Return the kind of the list of numbers around `at`, and its end.

    Args:
        text: The text.
        lo: Least start of the list.
        at: An index in a list.
        at_least: Shorter lists are ignored.
    """
    end = _end(_LIST, text, at)
    start = lo + len(text[lo:at].rstrip(LIST_CHARS))
    if end - start < at_least:
        return None, end
    for form in _FORMS:
        found = form.number.finditer(text, start, min(end, start + _BEGINNING_CHARS))
        numbers = list(itertools.islice(found, _STARTS_MAX + MAGIC_BYTES))
        try:
            first = form.values([number[1] for number in numbers])
        except ValueError:
            continue
        for skipped in range(min(_STARTS_MAX, len(numbers))):
            if first[skipped][:1] in first_bytes() and begins(
                b"".join(first[skipped : skipped + MAGIC_BYTES])
            ):
                begin = numbers[skipped].start()
                stop = _end(form.run, text, begin)
                written = _numbers(form, text, begin, stop)
                if written is not None and stop - begin >= at_least:
                    return written, stop
    return None, end


def _numbers(form: _Form, text: str, start: int, stop: int) -> Written | None:
    """Return the bytes of a run of numbers, read in parts: each number is an object temporarily."""
    content = bytearray()
    last = start
    numbers = form.number.finditer(text, start, stop)
    while part := list(itertools.islice(numbers, 10_000)):
        try:
            content += b"".join(form.values([number[1] for number in part]))
        except ValueError:
            return None
        last = part[-1].end()
    return Written(start, last, bytes(content))


_BLANKS = " \t|│┊"
_ROW = re.compile(
    rf"[{_BLANKS}]*(?:0[xX])?([0-9a-fA-F]{{4,16}})(?: <[^>\n]{{0,80}}>)?(?:[:h][{_BLANKS}]*|[{_BLANKS}]+)"
)
_CELLS = re.compile(rf"(?:(?:0[xX])?(?:[0-9a-fA-F]{{2}}){{1,8}}(?:[{_BLANKS}-]{{1,3}}|(?=[\r\n\\\"']|\Z)))+")
_CELL = re.compile("(?<![0-9a-fA-F])(?:0[xX])?((?:[0-9a-fA-F]{2})+)")
_ROW_END = re.compile(r"\r?\n|\\+r\\+n|\\+n")
_LINE_END = re.compile(r"\n|\\n")
_OFFSET = re.compile(r"[0-9a-fA-F]{4,16}(?=[\r\n\\\"']|\Z)")
_ROW_MAX_CHARS = 400
# A `*` stands for repeated rows; their expansion is bounded.
_FILLED_MAX_BYTES = 16 * 1024 * 1024


def dumped(text: str, lo: int, at: int) -> Written | None:
    """Return the hex dump that begins in a line between `lo` and the end of the line at `at`."""
    near = max(lo, at - _ROW_MAX_CHARS)
    following = _LINE_END.search(text, at, at + _ROW_MAX_CHARS)
    line_end = following[0] if following else "\n" if text.find("\n", near, at) >= 0 else "\\n"
    start = _row_start(text, lo, at, line_end)
    if _first_cells(text, start) is None and following is not None:
        start = following.end()
    row = _first_cells(text, start)
    while row is not None and start - len(line_end) > lo:
        before = _row_start(text, lo, start - len(line_end), line_end)
        if _first_cells(text, before) is None:
            break
        start = before
    row = _first_cells(text, start)
    return _dump(text, start, row) if row else None


def _row_start(text: str, lo: int, at: int, line_end: str) -> int:
    """Return the start of the line around `at`; for the first line of a JSON string, its quote."""
    lo = max(lo, at - _ROW_MAX_CHARS)
    start = text.rfind(line_end, lo, at)
    if start >= 0:
        return start + len(line_end)
    # A quote may also be a character of the column beside the cells.
    quote = text.rfind('"', lo, at)
    while quote >= 0 and _first_cells(text, quote + 1) is None:
        quote = text.rfind('"', lo, quote)
    return quote + 1 or lo


def _first_cells(text: str, start: int) -> re.Match[str] | None:
    row = _ROW.match(text, start)
    return row if row and _CELLS.match(text, row.end()) else None


def _dump(text: str, start: int, row: re.Match[str]) -> Written | None:
    cells = _row(text, row.end(), start + _ROW_MAX_CHARS)
    swapped = [cell[::-1] for cell in cells]
    order = next((step for step, tried in ((1, cells), (-1, swapped)) if begins(b"".join(tried))), None)
    line_end = _ROW_END.search(text, row.end(), row.end() + _ROW_MAX_CHARS)
    if order is None:
        return None
    # The offsets show how many of the cells are bytes, not characters of the column beside them.
    size, base = len(b"".join(cells)), 16
    following = _ROW.match(text, line_end.end()) if line_end else None
    if following is not None:
        steps = {
            int(following[1], base) - int(row[1], base): base
            for base in (16, 8, 10)
            if _is(row, following, base)
        }
        size = max((step for step in steps if 0 < step <= size), default=size)
        base = steps.get(size, 16)
    content = bytearray()
    position, end, offset = start, start, int(row[1], base)
    first, width, repeated = offset, _ROW_MAX_CHARS, False
    found: re.Match[str] | None = row
    while found is not None and _is(found, found, base):
        gap = int(found[1], base) - offset
        if gap < 0 or gap > _FILLED_MAX_BYTES or (gap and not repeated):
            break
        if gap:
            content += (bytes(content[-size:]) * (gap // size + 1))[:gap]
        cells = _row(text, found.end(), position + width)
        content += b"".join(cell[::order] for cell in cells)[:size]
        if position == start:
            width = _width(text, position, found.end(), size)
        offset = first + len(content)
        line_end = _ROW_END.search(text, found.end(), position + _ROW_MAX_CHARS)
        end = line_end.start() if line_end else len(text)
        if line_end is None:
            break
        position = line_end.end()
        repeated = text.startswith("*", position)
        if repeated:
            position = _end(_ROW_END, text, position + 1)
        found = _ROW.match(text, position)
    last = _OFFSET.match(text, position)
    return Written(start, last.end() if last else end, bytes(content))


def _is(row: re.Match[str], other: re.Match[str], base: int) -> bool:
    digits = row[1] + other[1]
    return base == 16 or (digits.isdigit() and (base == 10 or not set(digits) & {"8", "9"}))


def _row(text: str, start: int, stop: int) -> list[bytes]:
    cells = _CELLS.match(text, start, min(stop, len(text)))
    return [binascii.unhexlify(digits) for digits in _CELL.findall(cells[0])] if cells else []


def _width(text: str, line: int, start: int, size: int) -> int:
    """Return the number of characters for `size` bytes in a line, with its prefix."""
    count = 0
    for cell in _CELL.finditer(text, start, line + _ROW_MAX_CHARS):
        count += len(cell[1]) // 2
        if count >= size:
            return cell.end() + 1 - line
    return _ROW_MAX_CHARS


_LITERAL = re.compile(r"(?:(?<=[\"'`\s=(,:>])|\A)(?=[^\s\"'`\\]{0,16}(\\{1,8}))")
_LITERAL_BEFORE = 4096
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{1,3}|.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}


def escaped(text: str, lo: int, at: int) -> Written | None:
    """Return the string literal around `at`, or soon after it, if it contains binary bytes."""
    for opening in _LITERAL.finditer(text, max(lo, at - _LITERAL_BEFORE), min(len(text), at + 64)):
        start, backslashes = opening.end(), len(opening[1])
        quote = text[start - 1] if start and text[start - 1] in "\"'`" else "\n"
        depth = 1 if backslashes % 2 else 2
        body = _literal(text, start, start + 96, quote, depth)
        if not begins(_unescaped(body, quote, depth) or b""):
            continue
        body = _literal(text, start, len(text), quote, depth)
        content = _unescaped(body, quote, depth)
        if content is not None:
            return Written(start, start + len(body), content)
    return None


def _literal(text: str, start: int, stop: int, quote: str, depth: int) -> str:
    """Return the contents of a literal up to its closing quote. In JSON within JSON each backslash is two."""
    one, two, before = r"\\" * depth, r"\\" * 2 * depth, r"\\" * (2 * depth - 1)
    # C joins adjacent literals.
    # Python escapes its own quote, and JSON then the backslash alone.
    other = r"\\[\"'](?<!" + quote + ")|" + (one + "'|" if quote == "'" else "") if depth > 1 else ""
    joint = rf"{quote}\s{{0,64}}\n\s{{0,64}}{quote}"
    named = "(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{1,3}|[a-z])"
    unit = rf"{other}[^\\{quote}]|{joint}|{two}|{before}{quote}|{one}{named}"
    found = re.compile(f"(?:{unit})*+").match(text, start, min(stop, len(text)))
    return found[0] if found else ""


def _unescaped(body: str, quote: str, depth: int) -> bytes | None:
    if depth > 1 and quote == "'":
        body = body.replace("\\\\'", "'")
    body = (
        re.sub(rf"{quote}\s{{0,64}}\n\s{{0,64}}{quote}", "", body)
        if quote != "\n" and quote in body
        else body
    )
    if depth > 1:
        body = body.replace("\\" * (2 * depth - 1) + quote, "\\" + quote).replace("\\" * depth, "\\")
    try:
        return _ESCAPE.sub(_character, body).encode("latin-1")
    except UnicodeEncodeError:
        return None


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code[0] in "01234567" else _NAMED.get(code, code)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start
