"""Layer 3: undeclared encoded binary content, in any string of a result.

A whole string becomes a reference; a part of a text becomes a marker within the text. A string that is JSON
is examined as its parsed value, and stays JSON.

Source: document 004, sections 3.2 and 4.1, appendix A; requirements S4-17 to S4-23 and S4-44 to S4-51; rule
X2 of the conformance cases.
"""

import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from runner.formats.magic import PROBE_BYTES, BinaryFormat, identify, mime_types, runs_on
from runner.formats.mime import DEFAULT_MIME
from runner.output_guard.config import MAX_ELEMENTS, MAX_PARSE_CHARS, GuardConfig
from runner.output_guard.encoded import (
    Suspects,
    beginnings,
    data_url,
    decode,
    extents,
    head,
    line_end,
    seem_parts,
    seems_encoded,
    unhex,
)
from runner.output_guard.json_view import Unruly, json_text, view
from runner.output_guard.notation import Written, as_bytes, dumped, escaped, listed
from runner.output_guard.oversize import put_away
from runner.output_guard.references import file_name, marker, reference, summary
from runner.output_guard.storing import Find, LayerRun, rebuilt

__all__ = ["Detector", "scan"]

_URL_HEADER = re.compile(r"data:[^,\s\"'()<>\\]{0,128};base64,\Z", re.IGNORECASE)
_URL_HEADER_MAX = 150
_NESTED_MAX = 8
_BEGINNING_CHARS = 300
# A literal or a dump may begin with a page of text.
_BEHIND_CHARS = 4096
_UNKNOWN = BinaryFormat("bin", DEFAULT_MIME)


@dataclass(frozen=True, slots=True)
class Detector:
    """Detector of encoded binary content in text.

    Attributes:
        min_chars: Shorter strings are ignored.
        probe_bytes: Bytes that are examined to identify a format.
        needs_magic: Whether only known formats are removed.
        signatures: Configured base64 prefixes, their formats, and whether the format is unknown to
            `runner.formats.magic`; for known formats the bytes decide.
        template: Template of the summary of removed content.
    """

    min_chars: int
    probe_bytes: int
    needs_magic: bool
    signatures: tuple[tuple[str, BinaryFormat, bool], ...]
    template: str

    @classmethod
    def of(cls, config: GuardConfig) -> Self:
        """Return the detector of a configuration."""
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
            template=config.default_summary_template,
        )

    def recognise(self, text: str) -> tuple[bytes, BinaryFormat] | None:
        """Return the bytes that `text` as a whole encodes, and their format; None for unknown formats."""
        if self._kind(head(text), text) is not None:
            content = decode(text)
        elif identify(unhex(text, probe=True) or b"") is not None:
            content = unhex(text)
        else:
            return None if self.needs_magic else self.unknown(text)
        if content is None:
            return None
        kind = self._kind(content, text)
        return None if kind is None else (content, kind)

    def _kind(self, content: bytes, text: str) -> BinaryFormat | None:
        known = identify(content, probe_bytes=self.probe_bytes)
        return known or self.configured(text, only_unknown=True)

    def configured(self, text: str, *, only_unknown: bool = True) -> BinaryFormat | None:
        """Return the format of the configured base64 prefix that matches, if any."""
        for prefix, kind, unknown in self.signatures:
            if text.startswith(prefix) and (unknown or not only_unknown):
                return kind
        return None

    def unknown(self, text: str) -> tuple[bytes, BinaryFormat] | None:
        """Return the bytes that `text` as a whole encodes, unless they are a text."""
        content = decode(text) if unhex(text, probe=True) is None else None
        if content is None:
            return None
        try:
            content[: self.probe_bytes].decode()
        except UnicodeDecodeError:
            return content, self.configured(text, only_unknown=False) or _UNKNOWN
        return None


def scan(value: Any, detector: Detector, where: str = "", level: int = 0) -> LayerRun[Any]:
    """Return `value` without bytes and without the encoded binary content in its strings."""
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
    content = _as_bytes(value, detector) if "0" in value else None
    if content is not None:
        return (yield from _taken(*content, detector, where, {}))

    def edit(item: Any, place: str) -> "LayerRun[Any]":
        is_text = isinstance(item, str)
        return _string(item, detector, place, level, value) if is_text else scan(item, detector, place, level)

    def rename(key: str, place: str) -> "LayerRun[str]":
        return _pieces_out(key, _pieces(Suspects(key, detector.min_chars), detector), place)

    return (yield from rebuilt(value, edit, where, least=detector.min_chars, rename=rename))


def _array(value: list[Any], detector: Detector, where: str, level: int) -> LayerRun[Any]:
    content = _as_bytes(value, detector) if _may_be_bytes(value, detector) else None
    if content is not None:
        return (yield from _taken(*content, detector, where, {}))
    least = detector.min_chars
    made = yield from rebuilt(value, lambda item, at: scan(item, detector, at, level), where, least=least)
    is_text = made is value and len(value) > 1 and type(value[0]) is str
    lines = _lines(value, detector) if is_text else None
    return made if lines is None else (yield from _taken(*lines, detector, where, {}))


def _may_be_bytes(value: list[Any], detector: Detector) -> bool:
    if not value or type(value[0]) is not int:
        return bool(value) and type(value[0]) is list and seem_parts(value)
    return 2 * len(value) >= detector.min_chars


def _as_bytes(value: list[Any] | dict[str, Any], detector: Detector) -> tuple[bytes, BinaryFormat] | None:
    """Return the file that numbers encode: as Node writes a buffer, in rows, or by index."""
    try:
        if identify(as_bytes(list(itertools.islice(_numbers(value), PROBE_BYTES)))) is None:
            return None
        content = as_bytes(list(_numbers(value)))
    except (ValueError, TypeError):
        return None
    # Each number takes at least two characters, and its index four more.
    least = (6 if isinstance(value, dict) else 2) * len(content)
    kind = identify(content, probe_bytes=detector.probe_bytes) if least >= detector.min_chars else None
    return None if kind is None else (content, kind)


def _numbers(value: list[Any] | dict[str, Any]) -> Iterator[int]:
    """Yield the bytes of a list, of its rows, or of an object whose keys count from 0.

    Raises:
        TypeError: It has another type.
    """
    for index, item in enumerate(value):
        inner = value[item] if isinstance(value, dict) and item == str(index) else item
        if isinstance(inner, list):
            yield from _numbers(inner)
        elif type(inner) is int:
            yield inner
        else:
            raise TypeError


def _lines(value: list[Any], detector: Detector) -> tuple[bytes, BinaryFormat] | None:
    """Return the file that a list of strings encodes: lines of base64 or of a dump, digits of each byte."""
    if sum(len(item) if isinstance(item, str) else -sys.maxsize for item in value) < detector.min_chars:
        return None
    text = ("" if value[0].endswith("\n") else "\n").join(value)
    pieces = list(itertools.islice(_pieces(Suspects(text, detector.min_chars), detector), 2))
    if len(pieces) == 1 and 2 * (pieces[0].end - pieces[0].start) > len(text):
        return pieces[0].content, pieces[0].kind
    return None


def _string(text: str, detector: Detector, where: str, level: int, payload: dict[str, Any]) -> LayerRun[Any]:
    if len(text) < detector.min_chars:
        return text
    # Of a long text only the beginning is copied.
    beginning = text[:_BEGINNING_CHARS].lstrip()
    places = Suspects(text, detector.min_chars)
    is_raw = not text.isascii() and "\0" in text[:PROBE_BYTES]
    if next(iter(places), None) is None and not is_raw and text[:5].lower() != "data:":
        # True for most texts.
        return text
    if seems_encoded(beginning) or beginning[:5].lower() == "data:":
        body = text.strip()
        url = data_url(body)
        found = detector.recognise(url or body)
        if found is None and url is not None and len(url) >= detector.min_chars:
            # Declared as a file by its author, regardless of its content.
            found = detector.unknown(url)
        if found is not None and not runs_on(found[0]):
            return (yield from _taken(*found, detector, where, payload))
    if not text.isascii() and (raw := _raw(text)) is not None:
        return (yield from _taken(*raw, detector, where, payload))
    if beginning[:1] in ("{", "[", '"') and level < _NESTED_MAX:
        # Base64 in JSON can be hidden by an escape; numbers cannot.
        if "run" not in (kind for kind, _ in places) and next(_pieces(places, detector), None) is None:
            return text
        inside = yield from _json(text, detector, where, level)
        if inside is not text:
            return inside
    # Also if the parsed JSON contained nothing: a repeated key hides its earlier values.
    return (yield from _pieces_out(text, _pieces(places, detector), where))


def _raw(text: str) -> tuple[bytes, BinaryFormat] | None:
    """Return the file in a text with one byte per character, as from `decode("latin-1")`."""
    try:
        beginning = text[:PROBE_BYTES].encode("latin-1")
        content = text.encode("latin-1") if identify(beginning) else b""
    except UnicodeEncodeError:
        return None
    kind = identify(content)
    return None if kind is None else (content, kind)


def _json(text: str, detector: Detector, where: str, level: int) -> LayerRun[Any]:
    if len(text) > MAX_PARSE_CHARS:
        return (yield from put_away(text, where, is_json=True))
    try:
        parsed = view(json.loads(text), max_elements=MAX_ELEMENTS).value
    except (Unruly, RecursionError):
        return (yield from put_away(text, where, is_json=True))
    except ValueError:
        return text
    made = yield from scan(parsed, detector, where, level + 1)
    return text if made is parsed else json_text(made)


def _taken(
    content: bytes, kind: BinaryFormat, detector: Detector, where: str, payload: dict[str, Any]
) -> LayerRun[dict[str, Any]]:
    find = Find(
        content=content, mime=kind.mime, name=file_name(payload, where, kind.mime, kind.name), where=where
    )
    stored = yield find
    return reference(find, stored, summary(detector.template, find, stored, kind.name, payload))


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    end: int
    content: bytes
    kind: BinaryFormat


def _pieces_out(text: str, pieces: Iterable[_Piece], where: str) -> LayerRun[str]:
    parts: list[str] = []
    position = 0
    for piece in pieces:
        ending = file_name({}, where, piece.kind.mime, piece.kind.name)
        find = Find(content=piece.content, mime=piece.kind.mime, name=ending, where=where)
        stored = yield find
        parts += [text[position : piece.start], marker(find, stored)]
        position = piece.end
    return "".join([*parts, text[position:]]) if parts else text


def _pieces(places: Suspects, detector: Detector) -> Iterator[_Piece]:
    """Yield the files in a text one by one: if there are too many, the caller stops early."""
    text, done = places.text, 0
    searched = {"run": 0, "listed": 0, "escaped": 0}
    for kind, at in places:
        lo = max(
            done, searched[kind], at - (places.behind if kind == "run" else max(places.behind, _BEHIND_CHARS))
        )
        if at < lo:
            continue
        searched[kind] = line_end(text, at) if kind == "run" else at
        if kind == "run":
            # Dashes between pairs of digits are characters of base64, too.
            dashed = text.find("-", at, at + 8) >= 0
            found: Iterable[Written | None] = _runs(text, lo, at, detector, in_line=lo == done)
            found = itertools.chain(found, listed(text, lo, at, detector.min_chars)[:1] if dashed else ())
        elif kind == "escaped":
            found = (escaped(text, lo, at),)
        elif at < places.listed_to:
            continue
        else:
            written = dumped(text, lo, at)
            if written is None:
                lo = max(lo, places.listed_to)
                written, places.listed_to = listed(text, lo, at, detector.min_chars)
            found = (written,)
        for written in found:
            if written is None or written.start < done:
                continue
            known = identify(written.content, probe_bytes=detector.probe_bytes)
            known = known or detector.configured(text[written.start : written.start + 64])
            if known is not None and written.end - written.start >= detector.min_chars:
                done = searched[kind] = written.end
                yield _Piece(_from(text, written.start), written.end, written.content, known)


def _from(text: str, start: int) -> int:
    """Return the start of the `data:` URL whose base64 begins at `start`; `start` itself without one."""
    header = _URL_HEADER.search(text[max(0, start - _URL_HEADER_MAX) : start])
    return start - (len(header[0]) if header else 0)


def _runs(text: str, lo: int, at: int, detector: Detector, *, in_line: bool) -> Iterator[Written]:
    position: int | None = lo
    while position is not None:
        written = _run(text, position, at, detector, in_line=in_line or position > lo)
        if written is not None:
            yield written
        position = written.end if written else None


def _run(text: str, lo: int, at: int, detector: Detector, *, in_line: bool) -> Written | None:
    longest: Written | None = None
    for start in beginnings(text, lo, at, in_line=in_line):
        for end, body in extents(text, start):
            if end - start < detector.min_chars:
                break
            # The text after it may be excess padding, or may not belong to it.
            found = detector.recognise(body) or detector.recognise(body.rstrip("="))
            if found is not None and not runs_on(found[0]):
                return Written(start, end, found[0])
            longest = longest or (Written(start, end, found[0]) if found else None)
        if longest is not None:
            break
    return longest
