"""Events of a running call for the user's interface, and the texts of its progress for the MCP client.

A report whose message is `MCP_UPDATE:` and a JSON object carries a payload for the interface: content for
the canvas, or files made so far. The payload goes to the interface as events and to nobody else: an MCP
client gets the report with the payload's own `progress_message`, never with raw JSON. Anything else is an
ordinary message, broken payloads included, and is shown unchanged.

Events have references in place of bytes. A file in a payload, or a page with embedded pictures, is stored as
an observation, and the event refers to it. Anything else that looks like base64, in the arguments of a call
or in messages of a tool, is replaced by a placeholder.

Source: requirements S1-115, S4-80, S4-86; rules PR1 and PR2 of the conformance cases.
"""

import base64
import binascii
import re
import string
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.contract.error_messages import legible
from runner.contract.intake import Intake
from runner.contract.jsonable import NotJsonError, jsonable
from runner.formats.filenames import safe_name
from sandbox import strict_json

__all__ = ["MESSAGE_MAX_CHARS", "PAYLOAD_PREFIX", "Show", "Update", "light", "read_update", "without_bytes"]

MESSAGE_MAX_CHARS = 4096
PAYLOAD_PREFIX = "MCP_UPDATE:"

_PLACES = ("path", "s3_ref", "uri")
_PAYLOAD_MAX_CHARS = 2 * 1024 * 1024

Show = Callable[[bytes, str, str | None], Awaitable[Mapping[str, Any] | None]]
"""Stores bytes with a name and a type for a while; returns their `uri`, `size` and `sha256`, or None."""

_LEAST_CHARS = 1000
_RUN = re.compile(r"[\w+/-]*+={0,2}", re.ASCII)
# A text is cut into pieces of this length: a run of `_LEAST_CHARS` contains at least one whole piece.
_PIECE_CHARS = _LEAST_CHARS // 2
_PIECE = re.compile(rf"[\w+/-]{{{_PIECE_CHARS}}}", re.ASCII)
_LETTERS = "+/-_" + string.ascii_letters + string.digits
# The text before the content of a `data:` URI.
_HELD = ";base64,"
# Objects and arrays below this depth are replaced by null.
_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Update:
    """Content of one progress report.

    Attributes:
        message: Its text, cut to `MESSAGE_MAX_CHARS`; None without one.
        events: Events for the interface, in order.
    """

    message: str | None
    events: tuple[Mapping[str, Any], ...]


def read_update(progress: float, total: float | None, message: str | None) -> Update:
    """Read one progress report.

    Args:
        progress: How far the tool is.
        total: Its progress at the end, if it is known.
        message: Its message, a payload or words.
    """
    payload = _payload(message)
    if payload is None:
        words = None if message is None else legible(message, MESSAGE_MAX_CHARS)
        return Update(words, (_tool_progress(progress, total, words),))
    text = payload.get("progress_message")
    words = legible(text, MESSAGE_MAX_CHARS) if isinstance(text, str) else None
    shown = _shown(payload)
    # Files need no progress event of their own; every other payload sends one.
    silent = words is None and payload.get("type") == "artifacts"
    messages = () if silent else (_tool_progress(progress, total, words),)
    return Update(words, (*shown, *messages))


def _payload(message: str | None) -> Mapping[str, Any] | None:
    if message is None or not message.startswith(PAYLOAD_PREFIX) or len(message) > _PAYLOAD_MAX_CHARS:
        return None
    try:
        payload = jsonable(strict_json.loads(message.removeprefix(PAYLOAD_PREFIX)))
    except (ValueError, NotJsonError):
        return None
    return payload if isinstance(payload, dict) else None


def _shown(payload: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    match payload.get("type"):
        case "canvas_update":
            content = payload.get("content")
            return ({"type": "canvas_content", "content": content},) if isinstance(content, str) else ()
        case "artifacts":
            return (_progress_artifacts(payload),)
        case _:
            return ()


def _progress_artifacts(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event of files made so far: checked like those of a result, but not read from disk.

    The running call could replace a file while it is read; so a file without content is announced by its
    name.
    """
    listed = payload.get("artifacts")
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    artifacts = [item for entry in entries if (item := _file_so_far(entry)) is not None]
    event: dict[str, Any] = {"type": "progress_artifacts", "artifacts": artifacts}
    if isinstance(payload.get("display"), Mapping):
        event["display"] = dict(payload["display"])
    return event


def _file_so_far(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    if entry.get("b64") is not None:
        intake = Intake()
        return None if intake.artifact(entry) is None else intake.artifacts[0]
    name = entry.get("name")
    if not isinstance(name, str):
        return None
    facts = {key: value for key, value in entry.items() if key not in _PLACES and value is not None}
    return facts | {"name": safe_name(name)}


def _tool_progress(progress: float, total: float | None, message: str | None) -> Mapping[str, Any]:
    return {"type": "tool_progress", "percentage": _percentage(progress, total), "message": message or ""}


def _percentage(progress: float, total: float | None) -> float | None:
    """Return the progress from 0 to 100; None if the tool gives no total."""
    if total is None or total <= 0:
        return None
    return min(100.0, max(0.0, progress / total * 100.0))


async def light(event: Mapping[str, Any], show: Show | None) -> dict[str, Any]:
    """Return an event of a running call with references in place of the bytes in it.

    Args:
        event: The event.
        show: Stores the bytes; None if no interface would fetch them.
    """
    match event.get("type"):
        case "progress_artifacts":
            files = [await _stored(file, show) for file in event["artifacts"]]
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
    """Return a text with a placeholder for each run; the time grows with its pieces, not its letters."""
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


async def _stored(file: Mapping[str, Any], show: Show | None) -> dict[str, Any]:
    entry = {key: item for key, item in file.items() if key != "b64"}
    if show is None or not isinstance(file.get("b64"), str):
        return entry
    try:
        content = base64.b64decode(file["b64"], validate=True)
    except binascii.Error:
        return entry
    return entry | dict(await show(content, str(file["name"]), file.get("mime")) or {})
