"""The available-files block: what a prompt says of the user's files. Pure.

One line stands for one file, whatever its name holds: a name is data of somebody else, and a line it
could break would be read as the runner's own words. Names of usual files stay as they are, since a
model writes them back as arguments.

Source: document 001, section 4; requirements S1-38 to S1-45; rules P1 to P3 of the conformance cases;
contradiction C22.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.formats.human_numbers import human_count, human_size
from runner.formats.terminal_text import one_line
from runner.store.protocol import Origin, Record

__all__ = [
    "MOST_FILES",
    "AvailableFile",
    "available_files",
    "files_block",
    "human_facts",
]

MOST_FILES = 500
"""Files that a block names where its reader has requested it."""

_OPENING = "[SYSTEM: Available files in current session:"
_CLOSING = "End available files]"
_MARKERS = re.compile(r"\[(?=\s*system\s*:)|(?<=end available files)\]", re.IGNORECASE)

_MAX_TEXT = 300
_MAX_NUMBER = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableFile:
    """One file as the block names it; what is not known is left out.

    Attributes:
        name: Its name, as tools take it.
        source: `uploaded`, `generated` or `deferred`.
        day: Day on which it was uploaded or generated, as `YYYY-MM-DD`.
        size: Length in bytes.
        reason: Why it is deferred.
        facts: What is known of its content; see `runner.files.content_facts`.
    """

    name: str
    source: str
    day: str | None = None
    size: int | None = None
    reason: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def files_block(files: Sequence[AvailableFile], *, most: int = MOST_FILES) -> str:
    """Return the block that names `files`, in their order; nothing where there are none.

    Args:
        files: The files.
        most: How many it names; how many more there are stands in its last line.
    """
    if not files:
        return ""
    lines = [_line(file) for file in files[:most]]
    if len(files) > most:
        lines.append(f"- and {len(files) - most} more")
    return "\n".join([_OPENING, *lines, _CLOSING])


def available_files(records: Iterable[Record]) -> list[AvailableFile]:
    """Return the files for a block, newest first, without observations."""
    files = [record for record in records if record.metadata.is_file and record.name]
    return [_available(record) for record in sorted(files, key=lambda file: file.created, reverse=True)]


def human_facts(facts: Mapping[str, Any]) -> Iterator[str]:
    """Describe the known facts of a content for people; an invalid number yields nothing."""
    rows, width, height = (_number(facts, name) for name in ("rows", "width", "height"))
    if rows is not None:
        about = "~" if facts.get("rows_estimated") else ""
        yield f"{about}{human_count(rows)} {'row' if rows == 1 else 'rows'}"
    if width is not None and height is not None:
        yield f"{width}x{height}"


def _available(record: Record) -> AvailableFile:
    deferred = record.metadata.origin is Origin.DEFERRED
    return AvailableFile(
        name=record.name or "",
        source=record.metadata.origin.value,
        day=record.created.date().isoformat(),
        # Of a deferred file its state is told, not its size: it is not finished.
        size=None if deferred else record.size,
        reason=record.metadata.reason if deferred else None,
        facts={} if deferred else record.metadata.facts,
    )


def _line(file: AvailableFile) -> str:
    source = file.source
    if file.day is not None and source != Origin.DEFERRED.value:
        source = f"{source} {file.day}"
    parts = [source]
    if file.size is not None:
        parts.append(human_size(file.size))
    if file.reason:
        parts.append(file.reason.replace("_", " "))
    parts.extend(human_facts(file.facts))
    return f"- {_one_line(file.name)} ({', '.join(_one_line(text) for text in parts)})"


def _number(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER
    return value if known else None


def _one_line(text: str) -> str:
    """Return a text as part of one line: marks that nobody sees escaped, our own two broken."""
    cut = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    return _MARKERS.sub(r"\\\g<0>", one_line(cut))
