"""A stored file as an answer: whole or one range of it, always as an attachment.

The bytes may be anything a tool made: no browser runs them or guesses about them. Ranges are served, so
that large downloads can be resumed.

Source: RFC 9110 section 14 (ranges), RFC 6266 (Content-Disposition), RFC 8187; rules H3 and H4 of the
conformance cases.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from runner.errors import CallError, Code, RunnerError
from runner.files.my_files import MyFiles
from runner.http.responses import SAFE_HEADERS, refused
from runner.store.protocol import Content, Record

__all__ = [
    "OpenedResponse",
    "UnsatisfiableRangeError",
    "content_disposition",
    "failed",
    "file_response",
    "gone",
    "media_type",
    "parse_range",
]

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(; ?charset=[\w-]+)?", re.ASCII)
# RFC 6838, 4.2: 127 for either name; and a charset.
_MEDIA_TYPE_CHARS = 300

# What a browser would do with the bytes. The policy of a page trusts its own server, the bytes are anyone's.
_RUNS = frozenset(
    "embed frame iframe object script serviceworker sharedworker style worker xslt".split()  # noqa: SIM905
)

_log = logging.getLogger(__name__)


class UnsatisfiableRangeError(ValueError):
    """A range begins behind the end of the file."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return first and last byte of the one requested range, or None for the whole file.

    Several ranges, and units other than bytes, are answered with the whole file, as the RFC allows.

    Raises:
        UnsatisfiableRangeError: The range has no byte of the file.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size - 1
    else:
        start, end = int(first), min(int(last), size - 1) if last else size - 1
        if last and int(last) < start:
            return None
    if start > end:
        raise UnsatisfiableRangeError(header)
    return start, end


def content_disposition(name: str) -> str:
    """Return the header that makes a browser save a file under `name`, whatever the file is."""
    plain = "".join(char if " " <= char <= "~" and char not in '"\\%' else "_" for char in name)
    header = f'attachment; filename="{plain}"'
    return header if plain == name else f"{header}; filename*=UTF-8''{quote(name, safe='', errors='replace')}"


def media_type(mime: str) -> str:
    """Return a MIME type as a header may carry it."""
    return (
        mime if len(mime) <= _MEDIA_TYPE_CHARS and _MEDIA_TYPE.fullmatch(mime) else "application/octet-stream"
    )


def gone() -> JSONResponse:
    """Answer that a file is not there, or not this caller's: the two look the same."""
    return refused(404, "this file is no longer stored")


def failed(key: str, error: RunnerError) -> JSONResponse:
    """Answer that the store failed, for now or for good."""
    _log.error("download failed", extra={"key": key, "reason": str(error)})
    if isinstance(error, CallError) and not error.retryable:
        return refused(503, error.message)
    return refused(503, "the file cannot be read at present; try again later")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """Content whose first piece has been read."""

    size: int
    first: bytes
    rest: AsyncIterator[bytes]
    whole: Content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.first:
            yield self.first
        async for chunk in self.rest:
            yield chunk

    async def copy_to(self, fd: int) -> None:
        await self.whole.copy_to(fd)


async def _start(content: Content) -> Content:
    rest = aiter(content)
    return _Begun(size=content.size, first=await anext(rest, b""), rest=rest, whole=content)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedResponse:
    """Opens a stored file, answers with it, and closes it, however the answer ends.

    Attributes:
        file: The file.
        opened: Opens it, or a range of it.
        shaped: Makes the answer of what was opened.
    """

    file: Record
    opened: AbstractAsyncContextManager[Content]
    shaped: Callable[[Content], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        async with AsyncExitStack() as stack:
            try:
                content = await stack.enter_async_context(self.opened)
                if scope["method"] != "HEAD":
                    # What is damaged in its first piece, as small files are, is refused in words.
                    content = await _start(content)
                response = self.shaped(content)
            except CallError as error:
                response = gone() if error.code is Code.E_FILE_NOT_FOUND else failed(self.file.id, error)
            try:
                await response(scope, receive, send)
            except CallError as error:
                # Fewer bytes come than were announced, and the server closes the connection: not complete.
                _log.error("download broke off", extra={"key": self.file.id, "reason": error.message})


def file_response(request: Request, files: MyFiles, file: Record) -> OpenedResponse | Response:
    """Return the response with a file's bytes, or with the requested range.

    A browser that would make them part of a page is refused.
    """
    size, etag = file.size, f'"{file.sha256}"'
    request_headers = request.headers
    if request_headers.get("sec-fetch-dest") in _RUNS:
        return refused(403, "a stored file is never part of a page: no script, no style, no frame")
    # If-Range asks for the whole when the file is no longer the one it began with.
    partly = request.method == "GET" and request_headers.get("if-range", etag) == etag
    try:
        part = parse_range(request_headers.get("range"), size) if partly else None
    except UnsatisfiableRangeError:
        return refused(416, f"the file has {size} bytes", {"Content-Range": f"bytes */{size}"})
    first, last = part or (0, size - 1)
    headers = {
        **SAFE_HEADERS,
        "Accept-Ranges": "bytes",
        "Content-Disposition": content_disposition(file.shown),
        "Content-Length": str(last - first + 1),
        "Content-Type": media_type(file.mime),
        "ETag": etag,
    }
    if part:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    opened = files.open(file, offset=first, length=last - first + 1)
    return OpenedResponse(file=file, opened=opened, shaped=partial(_bytes, request, headers))


def _bytes(request: Request, headers: dict[str, str], content: Content) -> Response:
    status = 206 if "Content-Range" in headers else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    # Where the store ends too early the stream fails: the broken length tells the client.
    return StreamingResponse(aiter(content), status_code=status, headers=headers)
