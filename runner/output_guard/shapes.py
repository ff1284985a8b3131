"""What large content looks like, in a few words: rows and columns of tables, keys of objects, lines."""

import csv
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

__all__ = ["HEAD_CHARS", "TAIL_CHARS", "shape_of"]

# The document's figure for a preview.
HEAD_CHARS = 200
TAIL_CHARS = 80

_COLUMNS_MAX = 12
_NAME_MAX_CHARS = 30
_PARSE_MAX_CHARS = 1_000_000
_LINE_MAX_CHARS = 20_000
_DELIMITERS = ",\t;|"


def shape_of(value: Any) -> dict[str, Any]:
    """Return the shape of a plain value, or of a text that is JSON, a table or just text."""
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


def _of_text(text: str) -> dict[str, Any]:
    if text[:1] in ("{", "[") and len(text) <= _PARSE_MAX_CHARS:
        try:
            return shape_of(json.loads(text))
        except (ValueError, RecursionError):
            pass
    lines = text.count("\n") + (not text.endswith("\n"))
    header = _header(text)
    if header is not None:
        return {"kind": "table", "rows": lines - 1, "columns": _names(header)}
    return {"kind": "text", "lines": lines}


def _header(text: str) -> list[str] | None:
    """Return the first row of a delimited table, if the rows below it have as many fields."""
    sample = text[:_LINE_MAX_CHARS].splitlines()[:6]
    if len(sample) < 3:
        return None
    for delimiter in _DELIMITERS:
        if delimiter not in sample[0]:
            continue
        try:
            rows = list(csv.reader(sample[:-1], delimiter=delimiter, strict=True))
        except csv.Error:
            continue
        if len(rows) > 1 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows):
            return rows[0]
    return None


def _names(keys: Mapping[str, Any] | list[str]) -> list[str]:
    return [str(key)[:_NAME_MAX_CHARS] for key in islice(keys, _COLUMNS_MAX)]
