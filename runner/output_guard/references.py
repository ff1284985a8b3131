"""References in place of removed content: its kind, size and address, in a few fields.

Source: document 004, sections 3.1, 5.4 and 5.5; requirements S4-16, S4-73 to S4-77 and S4-79;
contradictions C26, C28 and C33.
"""

import re
from collections.abc import Mapping
from typing import Any

from runner.formats.content_shape import HEAD_CHARS, TAIL_CHARS, shape_of, shape_of_bytes
from runner.formats.filenames import safe_name
from runner.formats.human_numbers import human_size
from runner.formats.mime import extension, is_text
from runner.output_guard.encoded import cut
from runner.output_guard.storing import Find, KeptFind
from runner.store.protocol import Record

__all__ = ["file_name", "in_words", "large_text", "marker", "reference", "summary"]

_PLACEHOLDER = re.compile(r"\{(\w{1,100})\}")
_VALUE_MAX_CHARS = 200
_NAME_KEYS = ("filename", "file_name", "name", "title")


def reference(find: Find, stored: KeptFind, text: str) -> dict[str, Any]:
    """Return the replacement for binary content; `said` is the summary of the stored content."""
    if stored.record is None:
        return _unkept(find, stored)
    shape = shape_of_bytes(find.content, find.mime) if isinstance(find.content, bytes) else None
    made: dict[str, Any] = {"artifact": _artifact(stored.record), "summary": text}
    return made | ({"shape": shape} if shape else {}) | {"read": _how(find, stored)}


def large_text(find: Find, stored: KeptFind, summary_text: str, value: Any, text: str) -> dict[str, Any]:
    """Return the replacement for long text or a large structure.

    Args:
        find: The removed content.
        stored: The stored content.
        summary_text: The summary.
        value: The value whose shape is described.
        text: The text whose beginning and end the preview shows.
    """
    base = (
        {"artifact": _artifact(stored.record), "summary": summary_text}
        if stored.record
        else _unkept(find, stored)
    )
    base["preview"] = cut(text, HEAD_CHARS) + "..."
    base["tail"] = text[-TAIL_CHARS:]
    base["shape"] = shape_of(value)
    return base | ({"read": _how(find, stored)} if stored.record else {})


def marker(find: Find, stored: KeptFind) -> str:
    """Return the replacement for a part of a text. Without quotes: the text may be JSON."""
    was = f"{find.mime}, {len(find.content)} bytes"
    if stored.record is None:
        return f"[binary content removed: {was}, truncated: not kept]"
    return f"[binary content removed: {was}, stored as artifact {stored.record.id}, {_how(find, stored)}]"


def in_words(made: object) -> str | None:
    """Return a reference as a text of one line; None if a value is not a reference."""
    if not isinstance(made, Mapping) or not isinstance(made.get("summary"), str):
        return None
    artifact = made.get("artifact")
    if isinstance(artifact, Mapping) and "id" in artifact:
        return f"[{made['summary']}; artifact://{artifact['id']}]"
    return f"[{made['summary']}]" if "truncated" in made else None


def summary(template: str, find: Find, stored: KeptFind, kind: str, payload: Mapping[str, Any]) -> str:
    """Fill in a summary template: its own placeholders, then fields of the payload; others stay."""
    size = find.size
    named = payload.get("filename")
    own = {
        "content_type": kind,
        "mime_type": find.mime,
        "size": str(size),
        "size_human": human_size(size),
        "filename": named if isinstance(named, str) and named else find.name or "",
        "artifact_id": stored.record.id if stored.record else "",
    }

    def filled(match: re.Match[str]) -> str:
        value = own.get(match[1], payload.get(match[1]))
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return match[0]
        return str(value)[:_VALUE_MAX_CHARS]

    return _PLACEHOLDER.sub(filled, template)


def file_name(payload: Mapping[str, Any], where: str, mime: str, ending: str = "") -> str:
    """Return a name for a file removed from `payload`: its name in the payload, else its field."""
    ending = extension(mime) or (f".{ending}" if ending else "")
    for key in _NAME_KEYS:
        named = payload.get(key)
        if isinstance(named, str) and named.strip() and len(named) <= _VALUE_MAX_CHARS:
            return safe_name(named if named.lower().endswith(ending.lower()) else named + ending)
    last = re.sub(r"\[\d+\]$", "", where).rpartition(".")[2]
    return safe_name((last[:60] or "output") + ending)


def _artifact(record: Record) -> dict[str, Any]:
    return record.ref.model_dump(exclude_none=True)


def _how(find: Find, stored: KeptFind) -> str:
    id_ = "" if stored.record is None else stored.record.id
    if stored.reading_tools and (isinstance(find.content, str) or is_text(find.mime)):
        return f"read it with artifact_read or artifact_search, or as resource artifact://{id_}"
    return f"read it as resource artifact://{id_}"


def _unkept(find: Find, stored: KeptFind) -> dict[str, Any]:
    unit = "characters" if isinstance(find.content, str) else "bytes"
    size = len(find.content)
    return {
        "truncated": True,
        "original_size": size,
        "mime_type": find.mime,
        "summary": f"{size} {unit} ({find.mime}) truncated and not kept: {stored.reason[:_VALUE_MAX_CHARS]}",
    }
