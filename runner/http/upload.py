"""Uploads into My Files, streamed to an unnamed file.

Three forms: `multipart/form-data` with one file; a JSON object `{"filename", "content_base64"}`, which is
held in memory and bounded like any request; otherwise the body is the file, and `?filename=` names it.
The unnamed file disappears when its descriptor is closed, however the process ends. Until the store has the
whole file, there is nothing to clean up.

Source: requirements S1-18 to S1-20, contradiction C43; open(2), O_TMPFILE.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from runner.formats.base64 import canonical, decode
from runner.formats.mime import DEFAULT_MIME, guess, is_mime
from runner.http.multipart import FormFile
from runner.http.readiness import least_free_bytes
from runner.http.requests_per_user import streamed
from runner.http.responses import Refusal
from runner.http.upload_room import UploadRoom
from runner.settings.parts import StoreSettings
from runner.store.sources import write_all
from runner.system.threads import run_in_thread
from sandbox.strict_json import values_above

__all__ = ["UploadedFile", "read_json", "receive"]

log = logging.getLogger(__name__)

_BUFFER_BYTES = 1024 * 1024
# Most bytes of a form besides its file.
_FORM_BYTES = 1024 * 1024
_FORM_TYPE, _JSON_TYPE = "multipart/form-data", "application/json"
# Types that clients send when they do not know the type.
_SAYS_NOTHING = frozenset({DEFAULT_MIME, "application/x-www-form-urlencoded"})
# The API needs only a few members, and parsing each value blocks the event loop.
_MOST_VALUES = 10_000
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """A completely received file.

    Attributes:
        fd: The file, open; owned by the receiver.
        name: Its name, as the client wrote it.
        mime: The client's MIME type, if it is specific and the name suggests none.
    """

    fd: int
    name: str
    mime: str | None


@asynccontextmanager
async def receive(
    request: Request, settings: StoreSettings, room: UploadRoom, *, max_json_bytes: int
) -> AsyncIterator[UploadedFile]:
    """Read the file of a request; it is deleted when the block ends.

    Args:
        request: The request.
        settings: The effective settings.
        room: The reservation of the user's quota.
        max_json_bytes: Longest JSON body.

    Raises:
        Refusal: 400 the request has no valid file, 413 the file is too large, 503 the store's folder
            cannot be used, 507 its disk is full.
        CallError: `E_QUOTA`: it exceeds the user's quota.
    """
    folder = settings.store_path
    with contextlib.ExitStack() as stack:
        try:
            await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
            sink = _Sink(file.fileno(), folder, settings.max_artifact_bytes, room)
            yield await _received(request, sink, max_json_bytes)
        except OSError as error:
            if error.errno not in _FULL:
                # A fault of the machine, not of our code.
                facts = {"folder": str(folder), "problem": str(error)}
                log.error("the store takes no upload", extra=facts)  # noqa: TRY400 - see above
                raise Refusal(
                    503,
                    f"the server's store cannot be used: {error.strerror}; "
                    "try again later, or tell the operator, whose log names the folder",
                ) from error
            raise Refusal(
                507,
                "the server's disk is full, or takes nothing; remove files, or try again later",
            ) from error


async def read_json(request: Request, max_bytes: int) -> object:
    """Return the JSON value in the body of a request.

    Raises:
        Refusal: 400 it is not JSON or has too many values, or 413 it is longer than `max_bytes`.
    """
    body = bytearray()
    too_large = f"a JSON body may have {max_bytes} bytes; send a larger file as it is, with ?filename="
    _check_length(request, max_bytes, too_large)
    async for chunk in _pieces(request.stream()):
        body += chunk
        if len(body) > max_bytes:
            raise Refusal(413, too_large)
    if values_above(bytes(body), _MOST_VALUES):
        raise Refusal(400, f"the JSON body has more than {_MOST_VALUES:,} values")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error


class _Sink:
    """Buffered writer of a file. It writes in a thread, since a disk may block."""

    def __init__(self, fd: int, folder: Path, max_bytes: int, room: UploadRoom) -> None:
        self.fd = fd
        self.max_bytes = max_bytes
        self._folder = folder
        self._room = room
        self._held = bytearray()
        self._size = 0

    @property
    def too_large(self) -> str:
        return f"the file is larger than {self.max_bytes} bytes; the limit is max_artifact_bytes"

    async def expect(self, least: int, most: int) -> None:
        """Refuse an oversized upload before its body is sent."""
        await self._room.expect(least, most)
        await run_in_thread(self._check_disk, least)

    async def write(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self.max_bytes:
            raise Refusal(413, self.too_large)
        await self._room.take(len(chunk))
        self._held += chunk
        if len(self._held) >= _BUFFER_BYTES:
            await self.flush()

    async def flush(self) -> None:
        held, self._held = self._held, bytearray()
        await run_in_thread(self._write, held)

    def _check_disk(self, more: int) -> None:
        # With less than this, no call would work (`runner.http.readiness`).
        disk = os.statvfs(self._folder)
        if more > disk.f_bavail * disk.f_frsize - least_free_bytes(disk):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, content: bytes | bytearray) -> None:
        self._check_disk(len(content))
        write_all(self.fd, content)


async def _received(request: Request, sink: _Sink, max_json_bytes: int) -> UploadedFile:
    if "content-range" in request.headers:
        # RFC 9110, 14.5: stored as the whole file, a part would be a damaged one.
        raise Refusal(400, "a part of a file cannot be put; send the whole file, without Content-Range")
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise Refusal(
            415, f"the coding {coding[:20]!r} is not decoded; send the file without Content-Encoding"
        )
    named = request.query_params.get("filename")
    stated = request.headers.get("content-type", "")
    kind = stated.partition(";")[0].strip().lower()
    if kind == _FORM_TYPE:
        upload = await _of_form(request, sink, stated, named)
    elif kind == _JSON_TYPE and named is None:
        upload = await _of_json(request, sink, max_json_bytes)
    else:
        upload = await _of_body(request, sink, named, kind)
    await sink.flush()
    return upload


async def _of_body(request: Request, sink: _Sink, name: str | None, kind: str) -> UploadedFile:
    if not name:
        raise Refusal(400, "the file has no name; add ?filename=NAME")
    length = _check_length(request, sink.max_bytes, sink.too_large)
    if length is not None:
        await sink.expect(length, length)
    async for chunk in _pieces(streamed(request)):
        await sink.write(chunk)
    return UploadedFile(fd=sink.fd, name=name, mime=_type(name, kind))


async def _of_form(request: Request, sink: _Sink, stated: str, named: str | None) -> UploadedFile:
    form = FormFile(stated)
    most = sink.max_bytes + _FORM_BYTES
    length = _check_length(request, most, sink.too_large)
    if length is not None:
        await sink.expect(max(0, length - _FORM_BYTES), length)
    total = 0
    async for chunk in _pieces(streamed(request)):
        total += len(chunk)
        if total > most:
            raise Refusal(413, f"the form is larger than {most} bytes")
        await sink.write(form.feed(chunk))
    form.close()
    name = named or form.name
    if not name:
        raise Refusal(400, "the file in the form has no name; add ?filename=NAME")
    return UploadedFile(fd=sink.fd, name=name, mime=_type(name, form.mime))


async def _of_json(request: Request, sink: _Sink, max_bytes: int) -> UploadedFile:
    body = await read_json(request, max_bytes)
    if not isinstance(body, dict) or not isinstance(body.get("filename"), str) or not body["filename"]:
        raise Refusal(400, "the body must be a JSON object with filename and content_base64")
    content = await asyncio.to_thread(canonical, body.get("content_base64"))
    if content is None:
        raise Refusal(400, "content_base64 is not base64")
    decoded = await asyncio.to_thread(decode, content)
    await sink.expect(len(decoded), len(decoded))
    await sink.write(decoded)
    return UploadedFile(
        fd=sink.fd, name=body["filename"], mime=_type(body["filename"], body.get("content_type"))
    )


def _type(name: str, stated: object) -> str | None:
    """Return the stated type if it is specific and the name suggests none; else None."""
    if guess(name) != DEFAULT_MIME or not isinstance(stated, str) or not is_mime(stated):
        return None
    return None if stated.lower() in _SAYS_NOTHING else stated


def _check_length(request: Request, most: int, sentence: str) -> int | None:
    """Return the length that a client has announced, if any; refuse one that is too large."""
    header = request.headers.get("content-length", "")
    if not (header.isascii() and header.isdecimal()):
        return None
    # A number with more digits would take long to parse, and be too large anyway.
    length = int(header[:20])
    if length > most:
        raise Refusal(413, sentence)
    return length


async def _pieces(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for piece in stream:
            yield piece
    except ClientDisconnect as error:
        # No client is left to read this answer.
        raise Refusal(400, "the client left before the file was whole") from error
