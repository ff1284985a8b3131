"""One request to an application in this process: its address sent as it is, its answer read as it comes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp

HOST = "127.0.0.1"
PORT = 8000


@dataclass(kw_only=True)
class Answer:
    """An answer on its way."""

    status: int = 0
    headers: Sequence[tuple[str, str]] = ()
    started: asyncio.Event = field(default_factory=asyncio.Event)
    pieces: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)

    async def take(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
            ]
            self.started.set()
        elif message["type"] == "http.response.body":
            self.pieces.put_nowait(message.get("body", b""))
            if not message.get("more_body"):
                self.pieces.put_nowait(None)

    async def whole(self) -> bytes:
        """Return the rest of the body."""
        pieces = []
        while (piece := await self.pieces.get()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    async def until(self, text: bytes) -> bytes:
        """Return the body up to the piece that completes `text`; less if it ends before."""
        body = b""
        while text not in body and (piece := await self.pieces.get()) is not None:
            body += piece
        return body


@asynccontextmanager
async def asking(
    app: ASGIApp,
    method: str,
    address: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    cut_off: bool = False,
    hold: bool = False,
) -> AsyncIterator[Answer]:
    """Send a request; the client is there until the block ends, or with `cut_off` leaves behind the body.

    With `hold` it does not send all of the body; the block begins once the application waits for the rest.
    """
    path, _, query = address.partition("?")
    sent = {"host": f"{HOST}:{PORT}", "content-length": str(len(body)), **(headers or {})}
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()],
        "client": (HOST, 50_000),
        "server": (HOST, PORT),
    }
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": cut_off or hold}]
    left, waiting = asyncio.Event(), asyncio.Event()
    if cut_off:
        left.set()

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop(0)
        waiting.set()
        await left.wait()
        return {"type": "http.disconnect"}

    answer = Answer()

    async def serve() -> None:
        await app(scope, receive, answer.take)

    serving = asyncio.create_task(serve())
    start = asyncio.create_task(waiting.wait() if hold else answer.started.wait())
    try:
        await asyncio.wait({serving, start}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield answer
    finally:
        start.cancel()
        left.set()
        await serving
