"""Downloads: `GET /api/files/download/{key}?token=…` streams one stored file to whoever holds its token.

The token is the permission, so a request needs no cookie and no login; it opens one file of one user
until it expires. The bytes may be anything a tool made: they are always sent as an attachment that no
browser runs or guesses about. Ranges are served, so that large downloads can be resumed.

Source: RFC 9110 section 14 (ranges), RFC 6266 (Content-Disposition), RFC 8187; requirements S0-52, S0-53.
"""

import logging
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import quote

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from runner.errors import RunnerError
from runner.store.local import LocalStore, StoredFile
from runner.tokens import TokenError, Tokens

__all__ = ["PURPOSE", "UnsatisfiableRangeError", "content_disposition", "parse_range", "routes"]

PURPOSE = "download"

_CHUNK_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(; ?charset=[\w-]+)?", re.ASCII)
_SAFE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_log = logging.getLogger(__name__)


class UnsatisfiableRangeError(ValueError):
    """A range begins behind the end of the file."""


def routes(tokens: Tokens, store: LocalStore, *, clock: Callable[[], float]) -> list[Route]:
    """Return the download route.

    Args:
        tokens: What checks capability tokens.
        store: Where the files are.
        clock: Says the present time in seconds since the epoch.
    """

    async def download(request: Request) -> "Response | _FileResponse":
        key, token = request.path_params["key"], request.query_params.get("token", "")
        try:
            opened = await run_sync(_open, tokens, store, token, key, clock())
        except TokenError as error:
            _log.warning("download refused", extra={"key": key, "reason": str(error)})
            return _refusal(403, str(error))
        except RunnerError:
            _log.exception("download failed", extra={"key": key})
            return _refusal(503, "the file cannot be read at present; try again later")
        if opened is None:
            return _refusal(404, "this file is no longer stored")
        return _FileResponse(file=opened[0], fd=opened[1], request=request)

    return [Route("/api/files/download/{key}", download, methods=["GET"])]


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return first and last byte of the one range asked for, or None for the whole file.

    Several ranges and what is no range of bytes are answered with the whole file, as the RFC allows.

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


def _open(
    tokens: Tokens, store: LocalStore, token: str, key: str, now: float
) -> tuple[StoredFile, int] | None:
    user = tokens.verify(token, purpose=PURPOSE, key=key, now=now)
    file = store.by_id(user, key)
    return None if file is None else (file, store.open(file))


def _media_type(mime: str) -> str:
    return mime if _MEDIA_TYPE.fullmatch(mime) else "application/octet-stream"


def _refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status, headers={**_SAFE, **(headers or {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileResponse:
    """Answers with an open file and closes it, however the answer ends."""

    file: StoredFile
    fd: int
    request: Request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response()(scope, receive, send)
        finally:
            os.close(self.fd)

    def _response(self) -> Response:
        size = os.fstat(self.fd).st_size
        etag = f'"{self.file.sha256}"'
        asked = self.request.headers
        # If-Range asks for the whole when the file is no longer the one it began with.
        partly = self.request.method == "GET" and asked.get("if-range", etag) == etag
        try:
            part = parse_range(asked.get("range"), size) if partly else None
        except UnsatisfiableRangeError:
            return _refusal(416, f"the file has {size} bytes", {"Content-Range": f"bytes */{size}"})
        first, last = part or (0, size - 1)
        headers = {
            **_SAFE,
            "Accept-Ranges": "bytes",
            "Content-Disposition": content_disposition(self.file.name),
            "Content-Length": str(last - first + 1),
            "Content-Type": _media_type(self.file.mime),
            "ETag": etag,
        }
        if part:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        status = 206 if part else 200
        if self.request.method == "HEAD":
            return Response(status_code=status, headers=headers)
        return StreamingResponse(self._bytes(first, last + 1), status_code=status, headers=headers)

    async def _bytes(self, position: int, end: int) -> AsyncIterator[bytes]:
        while position < end:
            chunk = await run_sync(os.pread, self.fd, min(_CHUNK_BYTES, end - position), position)
            if not chunk:
                # Shorter than its record: the broken length tells the client, silence would not.
                raise OSError(f"stored file ends at byte {position} of {end}")
            position += len(chunk)
            yield chunk
