"""A value as JSON in pieces, so that a large file in it is never in memory twice.

Source: requirement S1-15: a file of up to 300 MiB is sent as base64.
"""

from collections.abc import Iterator
from typing import Any

from runner.formats.json_walks import least_chars
from runner.formats.terminal_text import json_text

__all__ = ["PIECE_CHARS", "json_pieces"]

PIECE_CHARS = 1024 * 1024


def json_pieces(value: Any) -> Iterator[str]:
    """Yield the JSON of a value; only its large parts are split."""
    if least_chars(value, PIECE_CHARS) <= PIECE_CHARS or not isinstance(value, str | dict | list):
        yield json_text(value)
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), PIECE_CHARS):
            yield json_text(value[start : start + PIECE_CHARS])[1:-1]
        yield '"'
    else:
        items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        yield "{" if isinstance(value, dict) else "["
        for number, (key, item) in enumerate(items):
            yield (", " if number else "") + ("" if key is None else f"{json_text(key)}: ")
            yield from json_pieces(item)
        yield "}" if isinstance(value, dict) else "]"
