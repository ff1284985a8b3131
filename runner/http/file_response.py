"""Responses with a stored file or one range of it, always as an attachment.

The bytes may be anything that a tool produced, so no browser may run or sniff them. With ranges, clients can
resume large downloads.

Source: RFC 9110 sections 13 (conditions) and 14 (ranges), RFC 6266 (Content-Disposition), RFC 8187; rules H3
and H4 of the conformance cases.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from runner.errors import CallError, Code, RunnerError
from runner.files.my_files import MyFiles
from runner.http.responses import SAFE_HEADERS, refused
from runner.store.protocol import Content, Record
from runner.users.capability_tokens import TokenError

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

# Refused values of `Sec-Fetch-Dest`: a page's policy trusts its own origin, but anyone may supply the bytes.
_RUNS = frozenset(
    "embed frame iframe object script serviceworker sharedworker style worker xslt".split()  # noqa: SIM905
)

_log = logging.getLogger(__name__)


class UnsatisfiableRangeError(ValueError):
    """A range that begins after the end of the file."""


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
    """Return a MIME type that is safe in a header: octet-stream for a malformed one."""
    return (
        mime if len(mime) <= _MEDIA_TYPE_CHARS and _MEDIA_TYPE.fullmatch(mime) else "application/octet-stream"
    )


def gone() -> JSONResponse:
    """Return the same 404 for a missing file as for a file of another user."""
    return refused(404, "this file is no longer stored")


def failed(key: str, error: RunnerError) -> JSONResponse:
    """Return a 503 for a temporary or permanent failure of the store."""
    _log.error("download failed", extra={"key": key, "reason": str(error)})
    if isinstance(error, CallError) and not error.retryable:
        return refused(503, error.message)
    return refused(503, "the file cannot be read at present; try again later")


async def _started(content: Content) -> AsyncIterator[bytes]:
    """Read the first chunk of a file, and return an iterator over all chunks."""
    rest = aiter(content)
    first = await anext(rest, b"")

    async def pieces() -> AsyncIterator[bytes]:
        if first:
            yield first
        async for chunk in rest:
            yield chunk

    return pieces()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedResponse:
    """A response that opens a stored file, sends it, and always closes it.

    Attributes:
        file: The file.
        opened: Opens it, or a range of it.
        shaped: Builds the response from the opened bytes.
        use: Uses up the link of the request, once the first bytes are read; runs in a thread.
    """

    file: Record
    opened: AbstractAsyncContextManager[Content]
    shaped: Callable[[AsyncIterator[bytes]], Response]
    use: Callable[[], object] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        async with AsyncExitStack() as stack:
            try:
                content = await stack.enter_async_context(self.opened)
                # Damage in the first chunk, and so in any small file, still gets an error response.
                is_head = scope["method"] == "HEAD"
                response = self.shaped(aiter(content) if is_head else await _started(content))
                if self.use is not None:
                    await run_sync(self.use)
                if is_head:
                    # The server drops the bytes, but the file would be read to its end.
                    response = Response(status_code=response.status_code, headers=response.headers)
            except CallError as error:
                response = gone() if error.code is Code.E_FILE_NOT_FOUND else failed(self.file.id, error)
            except TokenError as error:
                # Another request has used up the link since it was checked.
                response = refused(403, str(error))
            try:
                await response(scope, receive, send)
            except CallError as error:
                # With fewer bytes than announced, the server closes the connection: the client notices.
                _log.error("download broke off", extra={"key": self.file.id, "reason": error.message})


def file_response(request: Request, files: MyFiles, file: Record) -> OpenedResponse | Response:
    """Return the response with a file's bytes, or with the requested range.

    A browser that would embed the file in a page is refused.
    """
    size, etag = file.size, f'"{file.sha256}"'
    request_headers = request.headers
    if request_headers.get("sec-fetch-dest") in _RUNS:
        return refused(403, "a stored file is never part of a page: no script, no style, no frame")
    # The header is a list of entity tags, perhaps weak ones; ours occurs in no other. `*` is ignored: the
    # answer would tell the holder of a single-use link the digest of the file.
    if etag in request_headers.get("if-none-match", ""):
        return Response(status_code=304, headers={**SAFE_HEADERS, "ETag": etag})
    # If-Range requests the whole file when it has changed since the first part.
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
    return OpenedResponse(file=file, opened=opened, shaped=partial(_bytes, headers))


def _bytes(headers: dict[str, str], pieces: AsyncIterator[bytes]) -> Response:
    status = 206 if "Content-Range" in headers else 200
    # If the store ends early the stream fails, and the client sees that bytes are missing.
    return StreamingResponse(pieces, status_code=status, headers=headers)
