"""Shape of large content in a few words: rows and columns of CSV, keys of objects, lines."""

import csv
import io
import json
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

from runner.formats.cut_json import read_beginning
from runner.formats.images import image_size
from runner.formats.row_counts import count_rows

__all__ = ["HEAD_CHARS", "TAIL_CHARS", "part", "shape_of", "shape_of_bytes"]

# Preview length of document 004.
HEAD_CHARS = 200
TAIL_CHARS = 80

_COLUMNS_MAX = 12
_NAME_MAX_CHARS = 30
_PARSE_MAX_CHARS = 1_000_000
_BEGINNING_CHARS = 20_000
_ROWS_READ = 6
_COUNTS = ("key_count", "rows", "items")
_DELIMITERS = ",\t;|"


def shape_of(value: Any) -> dict[str, Any]:
    """Return the shape of a plain value, or of a text: JSON, a table or plain text."""
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, Mapping):
        return {"kind": "object", "keys": _names(value), "key_count": len(value)}
    if isinstance(value, list):
        return _of_list(value)
    return {"kind": type(value).__name__}


def _of_list(items: list[Any]) -> dict[str, Any]:
    first = items[0] if items else None
    if isinstance(first, dict) and all(isinstance(item, dict) for item in items):
        return {"kind": "table", "rows": len(items), "columns": _names(first)}
    if isinstance(first, list) and all(isinstance(item, list) for item in items):
        return {"kind": "table", "rows": len(items), "width": len(first)}
    return {"kind": "array", "items": len(items)}


def shape_of_bytes(content: bytes, mime: str) -> dict[str, Any] | None:
    """Return the shape of a file in a binary format: the size of an image, if its header has it."""
    pixels = image_size(partial(part, content)) if mime.startswith("image/") else None
    return None if pixels is None else {"kind": "image", "width": pixels[0], "height": pixels[1]}


def part(content: bytes, length: int, offset: int) -> bytes:
    """Return at most `length` bytes from an offset on, like `os.pread`."""
    return content[offset : offset + length]


def _of_text(text: str) -> dict[str, Any]:
    if text[:1] in ("{", "["):
        found = _of_json(text)
        if found is not None:
            return found
    header = _header(text)
    if header is not None:
        return {"kind": "table", **_row_facts(text), "columns": _names(header)}
    return {"kind": "text", "lines": text.count("\n") + (not text.endswith("\n"))}


def _row_facts(table: str) -> dict[str, int | bool]:
    content = table.encode(errors="replace")
    count = count_rows(partial(part, content), len(content), quotes=True, header=True)
    return {} if count is None else count.facts()


def _of_json(text: str) -> dict[str, Any] | None:
    whole = len(text) <= _PARSE_MAX_CHARS
    try:
        value = json.loads(text) if whole else read_beginning(text[:_BEGINNING_CHARS])
    except (ValueError, RecursionError):
        return None
    shape = shape_of(value)
    # If only the beginning was read, the names are known, but not the counts.
    return shape if whole else {key: item for key, item in shape.items() if key not in _COUNTS}


def _header(text: str) -> list[str] | None:
    """Return the first row of a delimited table, if the rows below it have as many fields."""
    for delimiter in _DELIMITERS:
        rows = _first_rows(text, delimiter)
        # The last row may be truncated.
        if len(rows) > 2 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows[:-1]):
            return rows[0]
    return None


def _first_rows(text: str, delimiter: str) -> list[list[str]]:
    """Return rows that a text begins with, read as a table; none if it is not a table."""
    beginning = text[:_BEGINNING_CHARS]
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(beginning, newline=""), delimiter=delimiter, strict=True):
            if row:
                rows.append(row)
            if len(rows) == _ROWS_READ:
                break
    except csv.Error as error:
        if len(text) == len(beginning) or "end of data" not in str(error):
            return []
        # A quoted field continues after the beginning that was read.
        rows.append([])
    return rows


def _names(keys: Mapping[str, Any] | list[str]) -> list[str]:
    return [str(key)[:_NAME_MAX_CHARS] for key in islice(keys, _COLUMNS_MAX)]
