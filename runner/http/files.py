"""My Files over HTTP: list, put, read, remove, and create download links that need no login.

An upload is answered once the store has it on disk.

Source: requirements S0-54, S0-75, S1-18 to S1-20, S4-78, S4-97; rule H1 of the conformance cases;
`docs/serving.md`.
"""

import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pybase64
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from runner.files.download_links import LINK_S, DownloadLinks
from runner.files.my_files import MyFiles, store_rules
from runner.files.paging import MOST, CursorError, page
from runner.http.context import Site
from runner.http.file_response import OpenedResponse, file_response, media_type
from runner.http.identify import identify, with_session
from runner.http.responses import SAFE_HEADERS, Refusal
from runner.http.upload import read_json, receive
from runner.http.upload_room import UploadRooms
from runner.store.protocol import Origin, Record
from runner.system.threads import run_in_thread
from runner.users.identity import User

__all__ = ["routes"]

_LINK_MAX_S = 7 * 24 * 3600.0
_ORDER_BYTES = 64 * 1024
_NO_SUCH_FILE = "there is no such file, or it is not yours; GET /api/files lists yours"

_log = logging.getLogger(__name__)


def routes(site: Site) -> list[Route]:
    """Return the routes."""
    api = _FilesApi(site)
    return [
        Route("/api/files", api.all, methods=["GET"]),
        Route("/api/files", api.put, methods=["POST", "PUT"]),
        Route("/api/files/{key}", api.as_json, methods=["GET"]),
        Route("/api/files/{key}", api.remove, methods=["DELETE"]),
        Route("/api/files/{key}/link", api.link, methods=["POST"]),
        Route("/artifacts/{key}", api.artifact, methods=["GET"]),
    ]


@dataclass(frozen=True, slots=True)
class _FilesApi:
    site: Site
    _rooms: UploadRooms = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rooms", UploadRooms(quota=lambda: store_rules(self.site.settings).files))

    async def all(self, request: Request) -> Response:
        files = self._of(await identify(self.site, request))
        limit, cursor = _limit(request), request.query_params.get("cursor")
        async with files.in_use(to_read=True):
            found = await files.all()
        try:
            content = await run_in_thread(_listed, found, limit, cursor)
        except CursorError as error:
            raise Refusal(400, f"{error}; leave it out for the first page") from error
        return Response(content, media_type="application/json", headers=SAFE_HEADERS)

    async def put(self, request: Request) -> JSONResponse:
        user = await identify(self.site, request)
        files, settings = self._of(user), self.site.settings
        async with (
            self._rooms.one(files) as room,
            receive(request, settings, room, max_json_bytes=settings.max_payload_bytes) as upload,
        ):
            file = await files.put(upload.fd, name=upload.name, mime=upload.mime, origin=Origin.UPLOADED)
        _log.info("file uploaded", extra={"user": user.name, "file": file.id, "size": file.size})
        headers = {**SAFE_HEADERS, "Location": f"/api/files/{file.id}"}
        return JSONResponse(_shown(file), status_code=201, headers=headers)

    async def as_json(self, request: Request) -> OpenedResponse:
        files, file = await self._file(request, await identify(self.site, request))
        return OpenedResponse(file=file, opened=files.open(file), shaped=partial(_json, file))

    async def remove(self, request: Request) -> Response:
        files, file = await self._file(request, await identify(self.site, request))
        if not await files.remove_found(file):
            # An observation: it has an id but is not a file, and it expires by itself.
            raise Refusal(404, _NO_SUCH_FILE)
        return Response(status_code=204, headers=SAFE_HEADERS)

    async def link(self, request: Request) -> JSONResponse:
        files, file = await self._file(request, await identify(self.site, request))
        once, ttl_s = _ordered(await read_json(request, _ORDER_BYTES))
        links = DownloadLinks(
            tokens=self.site.tokens,
            base=self.site.settings.public_url or "",
            ttl_s=ttl_s,
            clock=self.site.clock,
        )
        name = file.shown if "filename" in request.query_params else ""
        url = await run_sync(partial(links.to, files.holder, file.id, name=name, once=once))
        answer = {"url": url, "single_use": once, "ttl_s": ttl_s}
        return JSONResponse(answer, status_code=201, headers=SAFE_HEADERS)

    async def artifact(self, request: Request) -> OpenedResponse | Response:
        files, file = await self._file(request, await with_session(self.site, request))
        return file_response(request, files, file)

    def _of(self, user: User) -> MyFiles:
        return self.site.library.of(user.name, user.session)

    async def _file(self, request: Request, user: User) -> tuple[MyFiles, Record]:
        files, key = self._of(user), request.path_params["key"]
        # Files with equal content share a key.
        name = request.query_params.get("filename")
        file = await (files.by_id(key) if name is None else files.find(name))
        if file is None or file.id != key:
            raise Refusal(404, _NO_SUCH_FILE)
        return files, file


def _limit(request: Request) -> int | None:
    """Return the largest number of files in a page, or None for all."""
    limit_text = request.query_params.get("limit")
    if limit_text is None:
        return None
    if not (limit_text.isascii() and limit_text.isdecimal() and 1 <= int(limit_text[:20]) <= MOST):
        raise Refusal(
            400, f"limit is how many files a page has, from 1 to {MOST}; {limit_text[:20]!r} is not"
        )
    return int(limit_text[:20])


def _listed(files: Sequence[Record], limit: int | None, cursor: str | None) -> bytes:
    """Return a list of files, or a page of it, as JSON. A user may have 50,000: it blocks no event loop."""
    part = page(files, limit=limit, cursor=cursor)
    # One by one: `json.dumps` of all would not release the interpreter lock.
    rows = ", ".join([json.dumps(_shown(file)) for file in part.files])
    following = "" if limit is None and cursor is None else f', "next": {json.dumps(part.next)}'
    return f'{{"files": [{rows}]{following}}}'.encode()


def _shown(file: Record) -> dict[str, Any]:
    """Return the metadata of a file that its user sees."""
    return {
        "key": file.id,
        "filename": file.shown,
        "content_type": media_type(file.mime),
        "size": file.size,
        "sha256": file.sha256,
        "origin": file.metadata.origin.value,
        "created": file.created.isoformat(),
        "expires_at": file.expires_at.isoformat() if file.expires_at else None,
        "uri": f"artifact://{file.id}",
        "pending": file.pending,
    }


def _json(file: Record, pieces: AsyncIterator[bytes]) -> Response:
    """Return a file as JSON, encoded while it is sent."""
    shown = json.dumps(_shown(file)).encode()
    head, tail = shown[:-1] + b', "content_base64": "', b'"}'
    size = len(head) + 4 * ((file.size + 2) // 3) + len(tail)
    return StreamingResponse(
        _around(head, pieces, tail),
        media_type="application/json",
        headers={**SAFE_HEADERS, "Content-Length": str(size)},
    )


def _ordered(order: object) -> tuple[bool, float]:
    """Read the options of a requested link."""
    if isinstance(order, dict) and order.keys() <= {"single_use", "ttl_s"}:
        once, ttl_s = order.get("single_use", False), order.get("ttl_s", LINK_S)
        is_number = isinstance(ttl_s, int | float) and not isinstance(ttl_s, bool)
        if isinstance(once, bool) and is_number and 1 <= ttl_s <= _LINK_MAX_S:
            return once, float(ttl_s)
    raise Refusal(
        400,
        "a link is ordered by a JSON object with single_use (true or false) and ttl_s "
        f"(1 to {_LINK_MAX_S:.0f} seconds), both optional",
    )


async def _around(head: bytes, pieces: AsyncIterator[bytes], tail: bytes) -> AsyncIterator[bytes]:
    yield head
    held = b""
    async for chunk in pieces:
        held += chunk
        # A multiple of three bytes, so that no piece but the last is padded.
        whole = len(held) - len(held) % 3
        yield pybase64.b64encode(held[:whole])
        held = held[whole:]
    yield pybase64.b64encode(held) + tail
