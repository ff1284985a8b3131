"""Tools with which a model reads stored files, and content that the output guard removed from a result.

`artifact_info`, `artifact_read` and `artifact_search` are listed from the start: clients list tools only
once. Each answer is small and bounded. Neither the pattern nor the content is trusted: RE2 matches in linear
time, in a thread, one bounded piece of the content at a time.

Source: document 004, sections 5.5 and 5.6; requirements S4-76, S4-82.
"""

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import re2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.contract.widget_dialects import SCHEMA_DIALECT
from runner.errors import CallError, Code
from runner.files.my_files import SCHEME, MyFiles, artifact_id
from runner.formats.bounded_text import whole_characters
from runner.formats.content_shape import HEAD_CHARS, TAIL_CHARS, shape_of
from runner.formats.encodings import encoding_of
from runner.settings.parts import ResultSettings
from runner.store.protocol import Content, Record

__all__ = ["READING", "offered", "read_back", "reading_result"]

READ_MAX_CHARS = 8_000
"""Most characters that one `artifact_read` returns; few enough that the guard does not remove them again."""

_PROBE_BYTES = 64 * 1024
_SCAN_BYTES = 64 * 1024 * 1024
_LINES_BYTES = 256 * 1024 * 1024
_PIECE_BYTES = 64 * 1024
_PATTERN_MEMORY = 8 * 1024 * 1024
_EXCERPT_CHARS = 150

_Arguments = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Info(BaseModel):
    model_config = _Arguments

    id: str = Field(description="Id of the artifact, as in the reference; or its URI.")


class _Read(_Info):
    offset: int = Field(0, ge=0, description="First byte.")
    length: int = Field(
        READ_MAX_CHARS, ge=1, le=READ_MAX_CHARS, description="Number of bytes; not used with first_line."
    )
    first_line: int | None = Field(None, ge=1, description="First line, counted from 1, instead of a byte.")
    lines: int = Field(100, ge=1, le=1000, description="Number of lines, with first_line.")


class _Search(_Info):
    pattern: str = Field(
        min_length=1, max_length=1000, description="Regular expression (RE2), matched line by line."
    )
    max_matches: int = Field(20, ge=1, le=50, description="Most matches to return.")
    offset: int = Field(0, ge=0, description="First byte to search, from `next_offset` of an answer before.")


@dataclass(frozen=True, slots=True)
class _Tool:
    description: str
    arguments: type[_Info]


READING: Mapping[str, _Tool] = {
    "artifact_info": _Tool(
        "Say what a stored artifact is: type, size, shape, how it begins. "
        "Tools that take `filename` take its URI, artifact://ID, as well.",
        _Info,
    ),
    "artifact_read": _Tool("Read part of the text of a stored artifact, by bytes or by lines.", _Read),
    "artifact_search": _Tool("Search the text of a stored artifact, line by line.", _Search),
}
"""The tools, by name."""


def offered(settings: ResultSettings) -> list[dict[str, Any]]:
    """Return the tools for `tools/list`; none if the operator disabled them, or there is no store."""
    if not settings.has_extras or settings.store == "none:":
        return []
    return [
        {
            "name": name,
            "description": tool.description,
            "inputSchema": {"$schema": SCHEMA_DIALECT, **tool.arguments.model_json_schema()},
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }
        for name, tool in READING.items()
    ]


async def read_back(name: str, arguments: object, files: MyFiles) -> dict[str, Any]:
    """Return the answer of one of the tools.

    Raises:
        CallError: The arguments are wrong, there is no such artifact, or its bytes are not text.
    """
    try:
        parsed = READING[name].arguments.model_validate(arguments or {})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise CallError(Code.E_INVALID_ARGUMENT, f"{name}: {faults}") from None
    record = await files.by_id(artifact_id(parsed.id) or parsed.id)
    if record is None:
        message = f"there is no artifact {parsed.id!r} of this user; it may have expired"
        raise CallError(Code.E_FILE_NOT_FOUND, message, details={"id": parsed.id})
    if isinstance(parsed, _Search):
        return await _search(parsed, record, files)
    if isinstance(parsed, _Read):
        return await (_read if parsed.first_line is None else _lines)(parsed, record, files)
    return await _info(record, files)


async def reading_result(params: Mapping[str, Any], files: MyFiles) -> dict[str, Any]:
    """Return the result of a `tools/call` of one of the tools."""
    try:
        value = await read_back(str(params.get("name")), params.get("arguments"), files)
    except CallError as error:
        return {"content": [{"type": "text", "text": error.message}], "isError": True}
    text = json.dumps(value, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], "structuredContent": value, "isError": False}


async def _info(record: Record, files: MyFiles) -> dict[str, Any]:
    about: dict[str, Any] = {
        "artifact": record.ref.model_dump(mode="json", exclude_none=True),
        "created": record.created.isoformat(),
        "uri": f"{SCHEME}{record.id}",
    }
    if record.expires_at is not None:
        about["expires_at"] = record.expires_at.isoformat()
    head = await _bytes(record, files, 0, _PROBE_BYTES)
    encoding = encoding_of(head, is_whole=len(head) == record.size)
    if encoding is None:
        return about | {"kind": "binary"}
    text = head.decode(encoding, "replace").removeprefix("\ufeff")
    tail = await _bytes(record, files, max(0, record.size - 4 * TAIL_CHARS), None)
    # A shape counts rows or keys, which needs the whole content.
    shape = shape_of(text) if record.size <= _PROBE_BYTES else {"kind": "text"}
    shown = {"preview": text[:HEAD_CHARS], "tail": tail.decode(encoding, "ignore")[-TAIL_CHARS:]}
    return about | {"kind": "text", "shape": shape, **_named(encoding), **shown}


async def _read(arguments: _Read, record: Record, files: MyFiles) -> dict[str, Any]:
    encoding = await _encoding(record, files)
    if encoding != "utf-8":
        return await _read_other(arguments, record, files, encoding)
    # Three bytes more, to complete the last character.
    data = await _bytes(record, files, arguments.offset, arguments.length + 3)
    part = whole_characters(data, arguments.length, is_first=arguments.offset == 0)
    return {
        "id": record.id,
        "offset": arguments.offset + part.start,
        "text": data[part].decode("utf-8", "replace"),
        **_next(arguments.offset + part.stop, record),
    }


async def _read_other(arguments: _Read, record: Record, files: MyFiles, encoding: str) -> dict[str, Any]:
    """Read a range of a text that is not UTF-8; an offset inside a code unit is rounded down."""
    width = {"utf-16": 2, "utf-32": 4}.get(encoding[:6], 1)
    offset = arguments.offset // width * width
    data = await _bytes(record, files, offset, max(arguments.length, 4))
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    is_last = offset + len(data) >= record.size
    text = decoder.decode(data, is_last)
    reached = offset + len(data) - (0 if is_last else len(decoder.getstate()[0]))
    text = text.removeprefix("\ufeff") if not offset else text
    return {"id": record.id, "offset": offset, "text": text, **_named(encoding), **_next(reached, record)}


async def _lines(arguments: _Read, record: Record, files: MyFiles) -> dict[str, Any]:
    encoding = await _encoding(record, files)
    first = arguments.first_line or 1
    selected: list[str] = []
    room, more = READ_MAX_CHARS, False
    length = min(record.size, _LINES_BYTES)
    async with files.open(record, length=length) as content:
        number = 0
        async for line in _single_lines(_as_utf8(content, encoding)):
            number += 1
            if number < first:
                continue
            room -= len(line) + 1
            more = bool(selected) and (room < 0 or len(selected) == arguments.lines)
            if more:
                break
            selected.append(line.decode("utf-8", "replace").rstrip("\r"))
    if not selected and length < record.size:
        message = f"line {first} lies beyond the first {length} bytes; read it by offset"
        raise CallError(Code.E_INVALID_ARGUMENT, message)
    return {
        "id": record.id,
        "first_line": first,
        "text": "\n".join(selected),
        "lines": len(selected),
        **_named(encoding),
        **({"next_line": first + len(selected)} if more else {}),
    }


async def _search(arguments: _Search, record: Record, files: MyFiles) -> dict[str, Any]:
    encoding = await _encoding(record, files)
    search = _Searching(_pattern(arguments.pattern), arguments.max_matches, encoding)
    offset = min(arguments.offset, record.size)
    last = min(record.size, offset + _SCAN_BYTES)
    searched = offset
    async with files.open(record, offset=offset, length=last - offset) as content:
        async for _, piece in _pieces(_as_utf8(content, encoding), offset):
            # RE2 releases the GIL, so other calls continue meanwhile.
            await asyncio.to_thread(search.look, searched, piece)
            searched += search.size(piece)
            if search.full:
                break
    return {"id": record.id, "matches": search.matches, **_named(encoding), **_next(searched, record)}


@dataclass(slots=True)
class _Searching:
    pattern: Any
    most: int
    encoding: str
    matches: list[dict[str, Any]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.matches) >= self.most

    def size(self, text: bytes) -> int:
        """Return the number of bytes that a UTF-8 piece has in the artifact's own encoding."""
        return len(
            text
            if self.encoding == "utf-8"
            else text.decode("utf-8", "replace").encode(self.encoding, "replace")
        )

    def look(self, start: int, piece: bytes) -> None:
        """Search a piece that consists of whole lines, or of part of one very long line."""
        at = 0
        for line in piece.split(b"\n"):
            for match in self.pattern.finditer(line):
                if self.full:
                    return
                begin, end = match.span()
                around = line[max(0, begin - _EXCERPT_CHARS) : end + _EXCERPT_CHARS]
                self.matches.append(
                    {
                        "offset": start + self.size(piece[: at + begin]),
                        "match": line[begin:end].decode("utf-8", "replace")[:_EXCERPT_CHARS],
                        "text": around.decode("utf-8", "ignore").rstrip("\r\n")[: 3 * _EXCERPT_CHARS],
                    }
                )
            at += len(line) + 1


def _pattern(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "not understood"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        message = f"the pattern {pattern[:100]!r} is not an RE2 expression: {text}"
        raise CallError(Code.E_INVALID_ARGUMENT, message) from None


async def _pieces(content: AsyncIterator[bytes], offset: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield pieces of whole lines, each with its offset; a line longer than a piece is split."""
    rest = b""
    async for chunk in content:
        rest += chunk
        while len(rest) > _PIECE_BYTES:
            cut = rest.rfind(b"\n", 0, _PIECE_BYTES) + 1 or _PIECE_BYTES
            yield offset, rest[:cut]
            offset, rest = offset + cut, rest[cut:]
    if rest:
        yield offset, rest


async def _as_utf8(content: AsyncIterator[bytes] | Content, encoding: str) -> AsyncIterator[bytes]:
    """Yield a text piece by piece in UTF-8."""
    decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)("replace")
    async for chunk in content:
        yield chunk if decoder is None else decoder.decode(chunk).encode()


def _named(encoding: str) -> dict[str, str]:
    """Return the `encoding` field of an answer; nothing for UTF-8."""
    return {} if encoding == "utf-8" else {"encoding": encoding}


async def _single_lines(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield lines without their ends, each cut to `READ_MAX_CHARS` bytes."""
    rest = b""
    async for chunk in content:
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield (rest + line)[:READ_MAX_CHARS]
            rest = b""
        rest = (rest + last)[:READ_MAX_CHARS]
    if rest:
        yield rest


async def _encoding(record: Record, files: MyFiles) -> str:
    head = await _bytes(record, files, 0, _PROBE_BYTES)
    encoding = encoding_of(head, is_whole=len(head) == record.size)
    if encoding is None:
        message = (
            f"{record.shown} is binary ({record.mime}, {record.size} bytes) and has no text to read; "
            f"a client gets its bytes from the resource {SCHEME}{record.id}"
        )
        raise CallError(Code.E_INVALID_ARGUMENT, message)
    return encoding


async def _bytes(record: Record, files: MyFiles, offset: int, length: int | None) -> bytes:
    offset = min(offset, record.size)
    rest = record.size - offset
    wanted = rest if length is None else min(length, rest)
    async with files.open(record, offset=offset, length=wanted) as content:
        return b"".join([chunk async for chunk in content])


def _next(reached: int, record: Record) -> dict[str, int]:
    return {"size_bytes": record.size, **({"next_offset": reached} if reached < record.size else {})}
