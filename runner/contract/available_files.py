"""The available-files block: the part of a prompt that lists the user's files. Pure.

One line stands for one file, regardless of its name: a name is untrusted, and after a line break in it a
model would take its text for the runner's. Names of usual files stay unchanged, since a model repeats
them in arguments.

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
"""Most files of a block on request."""

_OPENING = "[SYSTEM: Available files in current session:"
_CLOSING = "End available files]"
_MARKERS = re.compile(r"\[(?=\s*system\s*:)|(?<=end available files)\]", re.IGNORECASE)

_MAX_TEXT = 300
_MAX_NUMBER = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableFile:
    """One file of the block; unknown facts are left out.

    Attributes:
        name: Its name, as in arguments of tools.
        source: `uploaded`, `generated` or `deferred`.
        day: Day on which it was uploaded or generated, as `YYYY-MM-DD`.
        size: Length in bytes.
        reason: Why it is deferred.
        facts: Facts about its content; see `runner.files.content_facts`.
    """

    name: str
    source: str
    day: str | None = None
    size: int | None = None
    reason: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def files_block(files: Sequence[AvailableFile], *, most: int = MOST_FILES) -> str:
    """Return the block that lists `files`, in their order; an empty text without files.

    Args:
        files: The files.
        most: Most files that it lists; its last line has the number of the others.
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
    """Yield the known facts about a content for people; invalid numbers are left out."""
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
        # A deferred file is not finished: its state is shown, not its size.
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
    """Return a text as part of one line: invisible characters escaped, our own two marks broken up."""
    cut = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    return _MARKERS.sub(r"\\\g<0>", one_line(cut))
