"""Layer 3: encoded binary content that nothing declares, in any string of a result.

A whole string becomes a reference; a part of a text becomes a marker within the text. A string that is JSON
is looked into as the value that it is, and stays JSON.

Source: document 004, sections 3.2 and 4.1, appendix A; requirements S4-17 to S4-23 and S4-44 to S4-51; rule
X2 of the conformance cases.
"""

import bisect
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from runner.formats.magic import BASE64_PREFIXES, PROBE_BYTES, BinaryFormat, identify, mime_types
from runner.formats.mime import DEFAULT_MIME
from runner.output_guard.config import GuardConfig
from runner.output_guard.encoded import (
    Span,
    data_url,
    decode,
    has_stretch,
    head,
    is_one_line,
    long_runs,
    seems_encoded,
    unhex,
    wrapped_blocks,
)
from runner.output_guard.json_view import Unruly, json_text, view
from runner.output_guard.references import file_name, large_text, marker, reference, summary
from runner.output_guard.storing import Find, LayerRun

__all__ = ["Detector", "scan"]

_URL_HEADER = re.compile(r"data:[^,\s\"'()<>\\]{0,128};base64,\Z", re.IGNORECASE)
_URL_HEADER_MAX = 150
_BYTE_LIST = re.compile(r"\[(?:\s*\d{1,3}\s*,){200}")
# A file may begin behind a word that base64 could hold as well; not behind a page of them.
_WORD_MAX = 256
_NESTED_MAX = 8
# JSON and `data:` URLs: encoded content in them may have blanks beside it.
_OPENS = frozenset("{[dD")
_BEGINNING_CHARS = 300
_UNKNOWN = BinaryFormat("bin", DEFAULT_MIME)


@dataclass(frozen=True, slots=True)
class Detector:
    """Tells encoded binary content from text.

    Attributes:
        min_chars: Shorter strings are left alone.
        probe_bytes: How much is looked at to tell a format.
        needs_magic: Whether only known formats are taken.
        signatures: Configured base64 prefixes, their formats, and whether only the configuration knows them:
            where it is not alone, the bytes decide.
        max_parse_chars: Longer JSON text is stored unparsed.
        max_elements: JSON text with more items is stored as a whole.
        template: The summary of what was taken out.
    """

    min_chars: int
    probe_bytes: int
    needs_magic: bool
    signatures: tuple[tuple[str, BinaryFormat, bool], ...]
    max_parse_chars: int
    max_elements: int
    template: str

    @classmethod
    def of(cls, config: GuardConfig) -> Self:
        """Return the detector that a configuration asks for."""
        detection = config.binary_detection
        known = mime_types()
        return cls(
            min_chars=detection.min_chars,
            probe_bytes=detection.max_decode_bytes,
            needs_magic=detection.require_magic_bytes,
            signatures=tuple(
                (prefix, BinaryFormat(name, mime), mime not in known)
                for prefix, (name, mime) in detection.signatures.items()
            ),
            max_parse_chars=config.max_parse_bytes,
            max_elements=config.max_elements,
            template=config.default_summary_template,
        )

    def may_hold(self, text: str) -> bool:
        """Say whether a string may hold encoded content: a quick look, which most texts do not pass."""
        least = self.min_chars
        if len(text) < least:
            return False
        first = text[0]
        return first in _OPENS or first.isspace() or has_stretch(text, least)

    def recognise(self, text: str) -> tuple[bytes, BinaryFormat] | None:
        """Return the bytes that `text` encodes, whole, and their format; None if it is no known binary."""
        if self._kind(head(text), text) is not None:
            content = decode(text)
        elif identify(unhex(text, probe=True) or b"") is not None:
            content = unhex(text)
        else:
            return None if self.needs_magic else self._unknown(text)
        if content is None:
            return None
        kind = self._kind(content, text)
        return None if kind is None else (content, kind)

    def _kind(self, content: bytes, text: str) -> BinaryFormat | None:
        known = identify(content, probe_bytes=self.probe_bytes)
        return known or self._configured(text, only_unknown=True)

    def _configured(self, text: str, *, only_unknown: bool) -> BinaryFormat | None:
        for prefix, kind, unknown in self.signatures:
            if text.startswith(prefix) and (unknown or not only_unknown):
                return kind
        return None

    def _unknown(self, text: str) -> tuple[bytes, BinaryFormat] | None:
        content = decode(text) if unhex(text, probe=True) is None else None
        if content is None:
            return None
        try:
            content[: self.probe_bytes].decode()
        except UnicodeDecodeError:
            return content, self._configured(text, only_unknown=False) or _UNKNOWN
        return None


def scan(value: Any, detector: Detector, where: str = "", level: int = 0) -> LayerRun[Any]:
    """Return `value` with the encoded binary content in its strings taken out, and all bytes."""
    match value:
        case str():
            return (yield from _string(value, detector, where, level, {}))
        case bytes():
            return (yield from _taken(value, identify(value) or _UNKNOWN, detector, where, {}))
        case dict():
            return (yield from _object(value, detector, where, level))
        case list():
            return (yield from _array(value, detector, where, level))
        case _:
            return value


def _object(value: dict[str, Any], detector: Detector, where: str, level: int) -> LayerRun[Any]:
    made: dict[str, Any] = {}
    same = True
    for key, item in value.items():
        new, name = item, key
        place = f"{where}.{key[:60]}" if where else key[:60]
        if isinstance(item, str):
            if detector.may_hold(item):
                new = yield from _string(item, detector, place, level, value)
        elif isinstance(item, dict | list | bytes):
            new = yield from scan(item, detector, place, level)
        if len(key) >= detector.min_chars:
            runs = long_runs(key, detector.min_chars)
            name = yield from _pieces_out(key, _pieces(key, runs, detector), place)
        same = same and new is item and name is key
        made[name] = new
    return value if same else made


def _array(value: list[Any], detector: Detector, where: str, level: int) -> LayerRun[Any]:
    content = _as_bytes(value, detector)
    if content is not None:
        kind = identify(content, probe_bytes=detector.probe_bytes) or _UNKNOWN
        return (yield from _taken(content, kind, detector, where, {}))
    made: list[Any] = []
    same = True
    for index, item in enumerate(value):
        new = item
        if detector.may_hold(item) if isinstance(item, str) else isinstance(item, dict | list | bytes):
            new = yield from scan(item, detector, f"{where}[{index}]", level)
            same = same and new is item
        made.append(new)
    return value if same else made


def _as_bytes(value: list[Any], detector: Detector) -> bytes | None:
    """Return the bytes that a list of numbers is, as Node writes a buffer, if a known format begins so."""
    # Each takes at least two characters.
    if 2 * len(value) < detector.min_chars or type(value[0]) is not int:
        return None
    try:
        if identify(bytes(value[:PROBE_BYTES])) is None:
            return None
        content = bytes(value)
    except (ValueError, TypeError):
        return None
    return content if identify(content, probe_bytes=detector.probe_bytes) else None


def _string(text: str, detector: Detector, where: str, level: int, payload: dict[str, Any]) -> LayerRun[Any]:
    if not detector.may_hold(text):
        return text
    # Of a long text only the beginning is copied.
    beginning = text[:_BEGINNING_CHARS].lstrip()
    if seems_encoded(beginning) or beginning[:5].lower() == "data:":
        body = text.strip()
        found = detector.recognise(data_url(body) or body)
        if found is not None:
            return (yield from _taken(*found, detector, where, payload))
    # Found as they are asked for: where there are too many files, a few of them are enough.
    runs = long_runs(text, detector.min_chars)
    first = next(runs, None)
    if first is None and not (beginning[:1] in ("{", "[") and _BYTE_LIST.search(text)):
        return text
    if beginning[:1] in ("{", "[", '"') and level < _NESTED_MAX:
        inside = yield from _json(text, detector, where, level)
        if inside is not text:
            return inside
    # Also where JSON held nothing: a repeated key hides what stood under it before.
    found_runs = itertools.chain([first] if first else [], runs)
    return (yield from _pieces_out(text, _pieces(text, found_runs, detector), where))


def _json(text: str, detector: Detector, where: str, level: int) -> LayerRun[Any]:
    if len(text) > detector.max_parse_chars:
        return (yield from _unparsed(text, where))
    try:
        parsed = view(json.loads(text), max_elements=detector.max_elements).value
    except (Unruly, RecursionError):
        return (yield from _unparsed(text, where))
    except ValueError:
        return text
    made = yield from scan(parsed, detector, where, level + 1)
    return text if made is parsed else json_text(made)


def _unparsed(text: str, where: str) -> LayerRun[dict[str, Any]]:
    find = Find(content=text, mime="application/json", name="tool-output.json", where=where)
    kept = yield find
    return large_text(find, kept, f"Large JSON stored as artifact ({len(text)} chars)", text, text)


def _taken(
    content: bytes, kind: BinaryFormat, detector: Detector, where: str, payload: dict[str, Any]
) -> LayerRun[dict[str, Any]]:
    find = Find(
        content=content, mime=kind.mime, name=file_name(payload, where, kind.mime, kind.name), where=where
    )
    kept = yield find
    return reference(find, kept, summary(detector.template, find, kept, kind.name, payload))


@dataclass(frozen=True, slots=True)
class _Piece:
    span: Span
    content: bytes
    kind: BinaryFormat


def _pieces_out(text: str, pieces: Iterable[_Piece], where: str) -> LayerRun[str]:
    parts: list[str] = []
    position = 0
    for piece in pieces:
        ending = file_name({}, where, piece.kind.mime, piece.kind.name)
        find = Find(content=piece.content, mime=piece.kind.mime, name=ending, where=where)
        kept = yield find
        parts += [text[position : piece.span.start], marker(find, kept)]
        position = piece.span.end
    return "".join([*parts, text[position:]]) if parts else text


def _pieces(text: str, runs: Iterable[Span], detector: Detector) -> Iterator[_Piece]:
    position = 0
    for run in runs:
        for span in _candidates(text, run, detector.min_chars):
            if span.start < position:
                continue
            piece = _piece(text, span, detector)
            if piece is not None:
                position = span.end
                yield piece


def _candidates(text: str, run: Span, at_least: int) -> list[Span]:
    """Return the parts of a run that may be a file: lines, also behind a word, and blocks of lines."""
    if is_one_line(text, run):
        lines = [run]
    else:
        lines = [_padded(text, line) for line in long_runs(text, at_least, run)]
        blocks = list(wrapped_blocks(text, run, at_least))
        lines = [*lines, *blocks, *_before_blocks(lines, blocks)]
    words = [Span(start, line.end) for line in lines for start in _behind_words(text, line)]
    return sorted((*lines, *words), key=lambda span: (span.start, -span.end))


def _before_blocks(lines: list[Span], blocks: list[Span]) -> Iterator[Span]:
    """Yield what stands in a line before a block begins in it: a file may end where a wrapped one begins."""
    starts = [line.start for line in lines]
    for block in blocks:
        at = bisect.bisect_left(starts, block.start) - 1
        if at >= 0 and block.start < lines[at].end:
            yield Span(lines[at].start, block.start)


def _padded(text: str, line: Span) -> Span:
    behind = text[line.end : line.end + 2]
    return Span(line.start, line.end + len(behind) - len(behind.lstrip("=")))


def _behind_words(text: str, line: Span) -> Iterator[int]:
    beginning = text[line.start : min(line.end, line.start + _WORD_MAX)]
    for prefix in BASE64_PREFIXES:
        start = beginning.find(prefix, 1)
        if start > 0:
            yield line.start + start


def _piece(text: str, span: Span, detector: Detector) -> _Piece | None:
    if span.end - span.start < detector.min_chars:
        return None
    probe = text[span.start : min(span.end, span.start + 2 * PROBE_BYTES)]
    if identify(head(probe)) is None and identify(unhex(probe, probe=True) or b"") is None:
        return None
    body = text[span.start : span.end]
    # What stands behind it may be too much padding, or none of its own.
    found = detector.recognise(body) or (detector.recognise(body.rstrip("=")) if body.endswith("=") else None)
    if found is None:
        return None
    header = _URL_HEADER.search(text[max(0, span.start - _URL_HEADER_MAX) : span.start])
    return _Piece(Span(span.start - (len(header[0]) if header else 0), span.end), *found)
