"""Conversion of a tool's progress report to events for the user's interface and a text for the MCP client.

A report whose message is `MCP_UPDATE:` and a JSON object carries a payload for the interface: content for
the canvas, or files made so far. The payload goes to the interface as events and to nobody else: an MCP
client gets the report with the payload's own `progress_message`, never with raw JSON. Anything else is an
ordinary message, broken payloads included, and is shown as it is.

Source: requirement S1-115; rules PR1 and PR2 of the conformance cases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.contract.error_messages import legible
from runner.contract.intake import Intake
from runner.contract.jsonable import NotJsonError, jsonable
from runner.formats.filenames import safe_name
from sandbox import strict_json

__all__ = ["MESSAGE_MAX_CHARS", "PAYLOAD_PREFIX", "Update", "read_update"]

MESSAGE_MAX_CHARS = 4096
PAYLOAD_PREFIX = "MCP_UPDATE:"

_PLACES = ("path", "s3_ref", "uri")
_PAYLOAD_MAX_CHARS = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Update:
    """Content of one progress report.

    Attributes:
        message: In words, cut to `MESSAGE_MAX_CHARS`; None where it has none.
        events: For the interface, in order.
    """

    message: str | None
    events: tuple[Mapping[str, Any], ...]


def read_update(progress: float, total: float | None, message: str | None) -> Update:
    """Read one progress report.

    Args:
        progress: How far the tool is.
        total: How far it will go, where it knows.
        message: What it says, a payload or words.
    """
    payload = _payload(message)
    if payload is None:
        words = None if message is None else legible(message, MESSAGE_MAX_CHARS)
        return Update(words, (_tool_progress(progress, total, words),))
    text = payload.get("progress_message")
    words = legible(text, MESSAGE_MAX_CHARS) if isinstance(text, str) else None
    shown = _shown(payload)
    # Files speak for themselves; everything else is at least a sign of progress.
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
    """Return the event of files made so far: judged as those of a result are, but none read from disk.

    The call still runs and could change what a path names while it is read; so a file without content
    is announced by its name.
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
