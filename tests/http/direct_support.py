"""Two applications over the same tools: one that answers usual calls directly, and one that never does."""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from direct_cases import Headers
from starlette.applications import Starlette
from starlette.types import Message, Scope
from support import settings_in

from runner.http.context import Site
from runner.protocol.direct import DirectCall
from runner.server.host import make_host
from runner.server.web import make_web
from runner.toolset.toolset import Toolset

TOOLS = Path(__file__).parents[1] / "tools" / "usual.py"
# Of the user whom both serve.
HOME = Path(f"/tmp/t-{uuid.uuid4().hex[:12]}")


@dataclass
class Webs:
    """One set of tools behind two applications: one that answers directly, and one that never does."""

    toolset: Toolset
    direct: Starlette
    plain: Starlette
    taken: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def opened_in(folder: Path, **more: Any) -> AsyncIterator[Webs]:
    """Open both, with more settings."""
    folder.chmod(0o700)
    # Which worker it was is said in the answer, so each call gets a new one.
    settings = settings_in(folder, **({"user": HOME.name, "worker_reuse": "call"} | more))
    async with contextlib.AsyncExitStack() as stack:
        toolset = await stack.enter_async_context(Toolset.open(settings, [str(TOOLS)]))
        site = Site(
            settings=settings, library=toolset.library, events=toolset.events, tokens=toolset.links.tokens
        )
        opened = []
        taken: list[str] = []
        for directly in (True, False):
            host = make_host(toolset, transport="http", download_url=None)
            answer = host.direct.answer

            async def noted(call: DirectCall, answer: Any = answer) -> dict[str, Any]:
                taken.append(call.params["name"])
                result: dict[str, Any] = await answer(call)
                return result

            host.direct.answer = noted  # type: ignore[method-assign]
            web = make_web(host, site, direct=host.direct if directly else None)
            await stack.enter_async_context(web.router.lifespan_context(web))
            opened.append(web)
        yield Webs(toolset=toolset, direct=opened[0], plain=opened[1], taken=taken)


def scope_of(headers: Headers, *, length: int, method: str = "POST") -> Scope:
    """Return what ASGI says of a request to `/mcp` with a body of `length` bytes."""
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
    """Send a request to `/mcp` and return what was sent back; `leaves` says when the client goes."""
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


def alike(value: Any) -> Any:
    """Return bytes with what differs from call to call made equal; anything else as it is."""
    if isinstance(value, bytes):
        return re.sub(rb'"(requestState|call|call_id)":"[^"]*"', rb'"\1":"..."', value)
    return value


def shown(sent: list[Message]) -> list[Any]:
    """Return messages with what differs from call to call made equal."""
    lines = []
    for entry in sent:
        plain = {key: alike(value) for key, value in entry.items() if key != "more_body"}
        if "headers" in plain:
            sorts = sorted(plain["headers"])
            plain["headers"] = [(name, value) for name, value in sorts if name != b"mcp-session-id"]
        lines.append(plain)
    return lines
