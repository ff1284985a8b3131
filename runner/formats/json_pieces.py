"""A contract value as JSON in pieces, so that a large file in it is never held a second time.

Source: requirement S1-15: a file of up to 300 MiB travels as base64.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner.formats.terminal_text import json_text

__all__ = ["PIECE_CHARS", "json_pieces"]

PIECE_CHARS = 1024 * 1024

_FILES = ("artifacts", "deferred_artifacts")


def json_pieces(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON of a contract value; only texts of its files are cut."""
    yield "{"
    yield from _joined(_member(key, item) for key, item in value.items())
    yield "}"


def _member(key: str, item: Any) -> Iterator[str]:
    yield f"{json_text(key)}: "
    if key in _FILES and isinstance(item, list):
        yield "["
        yield from _joined(_file(entry) for entry in item)
        yield "]"
    else:
        yield json_text(item)


def _file(entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield json_text(entry)
        return
    yield "{"
    yield from _joined(_field(key, item) for key, item in entry.items())
    yield "}"


def _field(key: str, item: Any) -> Iterator[str]:
    yield f"{json_text(key)}: "
    if not isinstance(item, str) or len(item) <= PIECE_CHARS:
        yield json_text(item)
        return
    yield '"'
    for start in range(0, len(item), PIECE_CHARS):
        yield json_text(item[start : start + PIECE_CHARS])[1:-1]
    yield '"'


def _joined(parts: Iterable[Iterator[str]]) -> Iterator[str]:
    for number, part in enumerate(parts):
        if number:
            yield ", "
        yield from part
