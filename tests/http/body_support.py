"""Clients that send a request to an application piece by piece, and stop where a test wants it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from site_support import TOKENS
from starlette.types import ASGIApp, Message
from support import becomes


@dataclass(kw_only=True)
class Sender:
    """A client that sends its body in pieces, when it is asked to."""

    pieces: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)
    sent: list[Message] = field(default_factory=list)
    taken: int = 0

    async def receive(self) -> Message:
        piece = await self.pieces.get()
        if piece is None:
            return {"type": "http.request", "body": b"", "more_body": False}
        self.taken += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        return next((each["status"] for each in self.sent if each["type"] == "http.response.start"), None)

    @property
    def error(self) -> str:
        body = b"".join(each["body"] for each in self.sent if each["type"] == "http.response.body")
        return str(json.loads(body)["error"])


@asynccontextmanager
async def part_of(
    web: ASGIApp, address: str, count: int, user: str = "ann", *, method: str = "POST", **more: str
) -> AsyncIterator[Sender]:
    """Send a part of a request to an application; more of it only by the sender, until the block ends.

    Args:
        web: The application.
        address: Path and query.
        count: Length of the first part, in bytes; 0 for none.
        user: Whose token it carries.
        method: Its method.
        more: Further headers, with underscores.
    """
    sender = Sender()
    path, _, query = address.partition("?")
    headers = {
        "host": "127.0.0.1:8000",
        "authorization": f"Bearer {TOKENS[user]}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8000),
    }

    async def serve() -> None:
        await web(scope, sender.receive, sender.send)

    serving = asyncio.create_task(serve())
    if count:
        sender.pieces.put_nowait(bytes(count))
    assert await becomes(lambda: sender.taken == count or sender.status is not None)
    await asyncio.sleep(0)
    try:
        yield sender
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
