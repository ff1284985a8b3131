"""Row count of a text table: CSV, TSV and JSON lines, counted in a bounded part of the file.

A line break inside a quoted field does not end a row, and a blank line is not counted. The count of a larger
file is estimated from its beginning, and marked as an estimate.

Source: RFC 4180; a quote that does not begin a field quotes nothing, as in Python's `csv`.
"""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MAX_BYTES", "Count", "count_rows"]

MAX_BYTES = 8 * 1024 * 1024
"""Most bytes of a file that are read; larger files are estimated."""

_CHUNK = 256 * 1024
# With a chunk, the most text of one search, which holds the interpreter lock for up to 40 ms.
_MAX_ROW = 256 * 1024
_MIN_SAMPLE = 100
"""Least number of rows for an estimate."""

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BREAKS = re.compile(rb"[\r\n]+")
_DELIMITERS = (b",", b"\t", b";", b"|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of rows.

    Attributes:
        rows: The number.
        exact: Whether they were counted, not estimated.
    """

    rows: int
    exact: bool

    def facts(self) -> dict[str, int | bool]:
        """Return it as members of a JSON object that describes the table."""
        return {"rows": self.rows} if self.exact else {"rows": self.rows, "rows_estimated": True}


def count_rows(read: Callable[[int, int], bytes], size: int, *, quotes: bool, header: bool) -> Count | None:
    """Count the rows of a text table; None if it is not one.

    Args:
        read: Returns at most a number of bytes of the text, from an offset on.
        size: Its length in bytes.
        quotes: Whether a quoted field may hold line breaks, as in CSV.
        header: Whether the first row names the columns, and is not data.
    """
    first = read(_CHUNK, 0)
    if first.startswith(_UTF16):
        return None
    begin = len(codecs.BOM_UTF8) if first.startswith(codecs.BOM_UTF8) else 0
    counter = _Counter(first[begin:], quotes=quotes)
    end = min(size, MAX_BYTES)
    for offset in range(begin, end, _CHUNK):
        if not counter.feed(read(min(_CHUNK, end - offset), offset)):
            return None
    if end == size:
        return Count(rows=max(counter.finish() - header, 0), exact=True)
    if counter.rows < _MIN_SAMPLE:
        return None
    estimate = counter.rows * size // (end - len(counter.rest))
    return Count(rows=estimate - header, exact=False)


class _Counter:
    """Row counter for a text in chunks; `rest` is the incomplete row."""

    def __init__(self, first: bytes, *, quotes: bool) -> None:
        self.rows = 0
        self.rest = b""
        self._fields = _Fields(first) if quotes else None

    def feed(self, chunk: bytes) -> bool:
        """Process a chunk; return whether the text can still be a table."""
        text = self.rest + chunk
        body, quoted = self._fields.outside(text) if self._fields is not None else (text, b"")
        cut = max(body.rfind(b"\n"), body.rfind(b"\r")) + 1
        self.rows += _lines(body[:cut])
        self.rest = body[cut:] + quoted
        return len(self.rest) <= _MAX_ROW and b"\0" not in body

    def finish(self) -> int:
        """Count the incomplete row, and return the number of rows."""
        return self.rows + bool(self.rest.strip(b"\r\n"))


class _Fields:
    """Finder of quoted fields in a table that begins with `first`, which determines the delimiter."""

    def __init__(self, first: bytes) -> None:
        names = _BREAKS.split(first.lstrip(b"\r\n"), maxsplit=1)[0]
        delimiter = max(_DELIMITERS, key=names.count)
        # The quote first: a search for a lookbehind would stop at every byte.
        start = rb'"(?<![^\r\n' + re.escape(delimiter) + rb']")'
        self._quoted = re.compile(start + rb'(?:[^"]++|"")*+"')
        self._opening = re.compile(start)

    def outside(self, text: bytes) -> tuple[bytes, bytes]:
        """Return `text` with a letter for each quoted field, and separately its incomplete rest."""
        if b'"' not in text:
            return text, b""
        # The chunk may end between two quotes in a row.
        whole = text.rstrip(b'"')
        body = self._quoted.sub(b"q", whole)
        opening = self._opening.search(body)
        end = len(body) if opening is None else opening.start()
        return body[:end], body[end:] + text[len(whole) :]


def _lines(text: bytes) -> int:
    """Count the lines of a text that ends with a line break, without the blank ones."""
    if b"\r" in text or b"\n\n" in text or text.startswith(b"\n"):
        text = _BREAKS.sub(b"\n", text).removeprefix(b"\n")
    return text.count(b"\n")
