"""Events for users' interfaces, with references in place of bytes.

A file in a progress payload, or a page with embedded pictures, is stored as an observation, and the event
refers to it. Anything else that looks like base64, in the arguments of a call or in messages of a tool, is
replaced by a placeholder.

Source: requirements S4-80, S4-86.
"""

import base64
import binascii
import re
import string
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

__all__ = ["Show", "light", "without_bytes"]

Show = Callable[[bytes, str, str | None], Awaitable[Mapping[str, Any] | None]]
"""Keeps bytes of a name and a type for a while; says their `uri`, `size` and `sha256`, if it does."""

_LEAST_CHARS = 1000
_RUN = re.compile(r"[\w+/-]*+={0,2}", re.ASCII)
# A run that is long enough has the whole of one of the pieces into which a text is cut.
_PIECE_CHARS = _LEAST_CHARS // 2
_PIECE = re.compile(rf"[\w+/-]{{{_PIECE_CHARS}}}", re.ASCII)
_LETTERS = "+/-_" + string.ascii_letters + string.digits
# What an address that holds its content says before it.
_HELD = ";base64,"
# What nests deeper nobody is shown.
_MAX_DEPTH = 50


async def light(event: Mapping[str, Any], show: Show | None) -> dict[str, Any]:
    """Return an event of a running call with references in place of the bytes in it.

    Args:
        event: The event.
        show: Keeps them; None where nobody would look at them.
    """
    match event.get("type"):
        case "progress_artifacts":
            files = [await _shown(file, show) for file in event["artifacts"]]
            return {**event, "artifacts": files}
        case "canvas_content" if (
            isinstance(event["content"], str) and _short(event["content"]) != event["content"]
        ):
            page = event["content"].encode("utf-8", "replace")
            canvas = None if show is None else await show(page, "canvas.html", "text/html")
            return {**event} if canvas is None else {**event, "content": {"type": "html", **canvas}}
        case _:
            return {**event}


def without_bytes(value: Any, depth: int = 0) -> Any:
    """Return JSON with a placeholder for each long run of base64."""
    match value:
        case str():
            return _short(value)
        case dict() if depth < _MAX_DEPTH:
            return {key: without_bytes(item, depth + 1) for key, item in value.items()}
        case list() if depth < _MAX_DEPTH:
            return [without_bytes(item, depth + 1) for item in value]
        case dict() | list():
            return None
        case _:
            return value


def _short(text: str) -> str:
    """Return a text with a word in place of each run; takes time for its pieces, not for its letters."""
    parts, done = [], 0
    for start, end in sorted({*_long_runs(text), *_held_runs(text)}):
        if start >= done:
            parts += [text[done:start], f"[{end - start} characters of base64]"]
            done = end
    return "".join([*parts, text[done:]]) if parts else text


def _long_runs(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while at + _PIECE_CHARS <= len(text):
        if _PIECE.match(text, at) is None:
            at += _PIECE_CHARS
            continue
        before = text[max(0, at - _PIECE_CHARS) : at]
        start, end = at - len(before) + len(before.rstrip(_LETTERS)), _end(text, at)
        if end - start >= _LEAST_CHARS:
            yield start, end
        at = end


def _held_runs(text: str) -> Iterator[tuple[int, int]]:
    at = text.find(_HELD)
    while at >= 0:
        start = at + len(_HELD)
        end = _end(text, start)
        if end > start:
            yield start, end
        at = text.find(_HELD, end)


def _end(text: str, start: int) -> int:
    found = _RUN.match(text, start)
    return start if found is None else found.end()


async def _shown(file: Mapping[str, Any], show: Show | None) -> dict[str, Any]:
    entry = {key: item for key, item in file.items() if key != "b64"}
    if show is None or not isinstance(file.get("b64"), str):
        return entry
    try:
        content = base64.b64decode(file["b64"], validate=True)
    except binascii.Error:
        return entry
    return entry | dict(await show(content, str(file["name"]), file.get("mime")) or {})
