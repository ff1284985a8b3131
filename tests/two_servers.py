"""Two servers of the same tools over HTTP and stdio: ours, and one in which the SDK answers every request."""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_requests import INITIALIZED, Headers, initialize
from starlette.applications import Starlette
from starlette.types import Message, Scope
from support import settings_in

from runner.http.context import Site
from runner.protocol.internals.host import serve_streams
from runner.protocol.lines import OutgoingLines
from runner.protocol.tool_calls import CallsOverLines, ToolCall
from runner.server.host import Host, make_host
from runner.server.web import build_app
from runner.toolset.toolset import Toolset

__all__ = [
    "HOME",
    "Client",
    "Line",
    "Webs",
    "finals",
    "messages",
    "opened_in",
    "post",
    "scope_of",
    "served",
    "whole",
]

TOOLS = Path(__file__).parent / "tools" / "usual.py"
# Home of the user of both servers.
HOME = Path(f"/tmp/t-{uuid.uuid4().hex[:12]}")
_SESSION = b"mcp-session-id"


@contextlib.contextmanager
def noted(host: Host, taken: list[str]) -> Iterator[None]:
    """Add the tool of each call that the host answers without the SDK to `taken`."""
    answer = host.direct.answer

    async def answer_and_note(call: ToolCall) -> dict[str, Any]:
        taken.append(call.params["name"])
        return await answer(call)

    host.direct.answer = answer_and_note  # type: ignore[method-assign]
    yield


@dataclass(repr=False)
class Webs:
    """Both servers over HTTP.

    Attributes:
        toolset: Their tools.
        direct: Our server.
        plain: The server of the SDK.
        taken: Tools of the calls that a host answered without the SDK.
    """

    toolset: Toolset
    direct: Starlette
    plain: Starlette
    taken: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def opened_in(folder: Path, **more: Any) -> AsyncIterator[Webs]:
    """Open both servers, with additional settings."""
    folder.chmod(0o700)
    # The answer contains the kind of worker, so each call gets a new one.
    settings = settings_in(folder, **({"user": HOME.name, "worker_reuse": "call"} | more))
    async with contextlib.AsyncExitStack() as stack:
        toolset = await stack.enter_async_context(Toolset.open(settings, [str(TOOLS)]))
        site = Site(
            settings=settings, library=toolset.library, events=toolset.events, tokens=toolset.links.tokens
        )
        opened: list[Starlette] = []
        taken: list[str] = []
        for directly in (True, False):
            host = make_host(toolset, transport="http", download_url=None)
            stack.enter_context(noted(host, taken))
            web = build_app(host, site, directly=directly)
            await stack.enter_async_context(web.router.lifespan_context(web))
            opened.append(web)
        yield Webs(toolset=toolset, direct=opened[0], plain=opened[1], taken=taken)


def scope_of(headers: Headers, *, length: int, method: str = "POST") -> Scope:
    """Return the ASGI scope of a request to `/mcp` with a body of `length` bytes."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"content-length", b"%d" % length)]
        + [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }


async def post(
    web: Starlette,
    body: bytes,
    headers: Headers,
    *,
    method: str = "POST",
    leaves: asyncio.Event | None = None,
    sent: list[Message] | None = None,
) -> list[Message]:
    """Send a request to `/mcp` and return the response; the client disconnects when `leaves` is set."""
    scope = scope_of(headers, length=len(body), method=method)
    is_sent, sent = False, [] if sent is None else sent

    async def receive() -> Message:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await web(scope, receive, send)
    return sent


@dataclass
class Client:
    """An HTTP client with its own session."""

    web: Starlette
    version: str
    session: str
    more: tuple[tuple[str, str], ...] = ()

    @classmethod
    async def of(
        cls, web: Starlette, version: str = "2025-11-25", *more: tuple[str, str], **able: Any
    ) -> "Client":
        """Open a session, with more headers and capabilities."""
        client = cls(web, version, "", more)
        began = await client.post(initialize(version, **able))
        client.session = dict(began[0]["headers"])[_SESSION].decode()
        await client.post(INITIALIZED)
        return client

    def headers(self) -> list[tuple[str, str]]:
        named = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": self.version if self.version != "2025-03-26" else None,
            "mcp-session-id": self.session or None,
            **dict(self.more),
        }
        return [(name, value) for name, value in named.items() if value is not None]

    async def post(self, body: Any, **more: Any) -> list[Message]:
        return await post(self.web, json.dumps(body).encode(), self.headers(), **more)


def whole(sent: list[Message], session: str = "-") -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body of a response; placeholders replace values that differ in each call."""
    assert not sent[-1].get("more_body"), "the response has no end"
    body = b"".join(entry.get("body", b"") for entry in sent[1:]).replace(session.encode(), b"...")
    headers = [(name, value if name != _SESSION else b"...") for name, value in sent[0]["headers"]]
    body = re.sub(rb'"(requestState|call|call_id)":"[^"]*"', rb'"\1":"..."', body)
    body = re.sub(rb'"(steps_ms|usage)":{[^}]*}', rb'"\1":{}', body)
    # The length of a sealed state varies too.
    headers = [(name, value if name != b"content-length" else b"...") for name, value in headers]
    return sent[0]["status"], sorted(headers), body


def messages(sent: list[Message]) -> list[Any]:
    """Return the messages in a stream of server-sent events."""
    events = b"".join(entry.get("body", b"") for entry in sent).split(b"\r\n\r\n")
    return [json.loads(event.split(b"data: ")[1]) for event in events if event.startswith(b"event")]


@dataclass
class Line:
    """The client's end of two pipes to a server."""

    into: int
    out: int
    taken: list[str]
    messages: list[dict[str, Any]] = field(default_factory=list)
    _rest: bytes = b""

    def write(self, *messages: Any) -> None:
        for each in messages:
            raw = each if isinstance(each, bytes) else json.dumps(each).encode()
            os.write(self.into, raw + b"\n")

    def leave(self) -> None:
        if self.into >= 0:
            os.close(self.into)
        # The descriptor number may be reused from now on.
        self.into = -1

    def answers(self) -> list[Any]:
        """Return the messages received so far, in order."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.out, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self.messages += [json.loads(line) for line in lines]
        return self.messages


@contextlib.asynccontextmanager
async def served(toolset: Toolset, *, directly: bool) -> AsyncIterator[Line]:
    """Serve one client over two pipes, with our server or the SDK's."""
    to_server, into = os.pipe()
    out, from_server = os.pipe()
    # Large enough for the longest message: one thread writes and reads it.
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 1 << 20)
    for descriptor in (to_server, out, from_server):
        os.set_blocking(descriptor, False)
    host, taken = make_host(toolset, transport="stdio", download_url=None), list[str]()
    answers = OutgoingLines(from_server)
    incoming = CallsOverLines(to_server, answers, host.direct if directly else None)
    line = Line(into=into, out=out, taken=taken)
    with noted(host, taken):
        serving = asyncio.create_task(serve_streams(host, incoming, answers))
        try:
            yield line
        finally:
            line.leave()
            await serving
            for descriptor in (to_server, out, from_server):
                os.close(descriptor)


def finals(messages: list[Any]) -> list[Any]:
    """Return the answers and requests among messages."""
    return [each for each in messages if "id" in each]
