"""A server as others write them, for the proxy to stand in front of: over stdio, or over HTTP with a port."""

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.server.elicitation import AcceptedElicitation
from fastmcp.tools import ToolResult
from fastmcp.utilities.types import Image
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from pydantic import BaseModel

PNG = bytes.fromhex("89504e470d0a1a0a") + bytes(2000)
PDF = b"%PDF-1.7\n" + bytes(range(256)) * 20

mcp = FastMCP(
    "remote",
    version="7.7",
    instructions="Ask for rows.",
    website_url="https://remote.example",
    icons=[mcp_types.Icon(src="https://remote.example/icon.png")],
)


class Page(BaseModel):
    title: str
    body: str
    rows: list[int]


@mcp.tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@mcp.tool
async def ask_many(count: int, ctx: Context) -> int:
    """Send the client several requests at once; return the number of answers."""
    answers = await asyncio.gather(
        *(ctx.elicit("?", response_type=str) for _ in range(count)), return_exceptions=True
    )
    return sum(not isinstance(answer, BaseException) for answer in answers)


@mcp.tool
def pdf(name: str) -> dict[str, str]:
    return {"name": name, "content": base64.b64encode(PDF).decode()}


@mcp.tool
def picture() -> Image:
    return Image(data=PNG, format="png")


@mcp.tool
def page(chars: int) -> Page:
    return Page(title="long", body="x" * chars, rows=list(range(chars)))


@mcp.tool
def text(chars: int) -> str:
    return "".join(f"line {n}\n" for n in range(chars // 8))


@mcp.tool
def link(uri: str, size: int | None) -> ToolResult:
    found = mcp_types.ResourceLink(type="resource_link", uri=uri, name="linked", size=size)
    return ToolResult(content=[found])


@mcp.tool
async def steps(ctx: Context) -> str:
    for n in range(3):
        await ctx.report_progress(n, 3, f"step {n}")
    await ctx.info("half way")
    return "done"


@mcp.tool
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit("Your name?", response_type=str)
    assert isinstance(answer, AcceptedElicitation)
    return f"hello {answer.data}"


@mcp.tool
async def silent(seconds: float, ctx: Context) -> str:
    await ctx.report_progress(1, message="asleep")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _CANCELLED.set()
        raise
    return "woke"


@mcp.tool
async def cancelled() -> str:
    """Answer once a call of `silent` was cancelled."""
    await _CANCELLED.wait()
    _CANCELLED.clear()
    return "cancelled"


@mcp.tool
def remember(ctx: Context, value: int) -> list[int]:
    """Sessions that are kept have a memory."""
    _MEMORY.append(value)
    return _MEMORY


@mcp.tool
def crash() -> str:
    os._exit(3)


@mcp.tool
def pid() -> int:
    return os.getpid()


@mcp.tool
def child() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


@mcp.tool
def see(path: str) -> str:
    try:
        return Path(path).read_text()[:100]
    except OSError as error:
        return type(error).__name__


@mcp.tool
def leave(path: str) -> str:
    try:
        Path(path).write_text("left")
    except OSError as error:
        return type(error).__name__
    return "written"


@mcp.tool
def surroundings() -> dict[str, str]:
    return dict(os.environ)


@mcp.tool
def reach(host: str, port: int) -> str:
    import socket

    try:
        socket.create_connection((host, port), 2).close()
    except OSError as error:
        return type(error).__name__
    return "reached"


@mcp.resource("note://short")
def short() -> str:
    return "a note"


@mcp.resource("note://long", mime_type="text/markdown")
def long() -> str:
    return "y" * 10_001


@mcp.resource("note://picture", mime_type="image/png")
def blob() -> bytes:
    return PNG


@mcp.resource("note://{day}/entry")
def entry(day: str) -> str:
    return f"entry of {day}"


@mcp.prompt
def greet(name: str) -> str:
    return f"Greet {name}."


@mcp.completion
async def complete(ref: object, argument: object, context: object) -> list[str]:
    return ["Ann", "Anton"]


@mcp.tool
async def change(uri: str) -> str:
    """Notify the subscribers of a resource, in either era, that it changed."""
    await _BUS.publish(ResourceUpdated(uri=uri))
    for connection in _SUBSCRIBED.get(uri, []):
        await connection.send_resource_updated(uri)
    _TEXTS[uri] = "changed"
    return "told"


@mcp.resource("live://one")
def live() -> str:
    return _TEXTS.get("live://one", "as it was")


async def subscribe(ctx: ServerRequestContext[Any, Any], params: mcp_types.SubscribeRequestParams) -> Any:
    _SUBSCRIBED.setdefault(str(params.uri), []).append(ctx.session._connection)
    return mcp_types.EmptyResult()


async def unsubscribe(ctx: ServerRequestContext[Any, Any], params: mcp_types.UnsubscribeRequestParams) -> Any:
    _SUBSCRIBED.pop(str(params.uri), None)
    return mcp_types.EmptyResult()


_MEMORY: list[int] = []
_CANCELLED = asyncio.Event()
_TEXTS: dict[str, str] = {}
_SUBSCRIBED: dict[str, list[Any]] = {}
_BUS = InMemorySubscriptionBus()

low = mcp._mcp_server
low.add_request_handler("resources/subscribe", mcp_types.SubscribeRequestParams, subscribe)
low.add_request_handler("resources/unsubscribe", mcp_types.UnsubscribeRequestParams, unsubscribe)
low.add_request_handler(
    "subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, ListenHandler(_BUS)
)

if __name__ == "__main__":
    if sys.argv[1:]:
        mcp.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
    else:
        mcp.run("stdio", show_banner=False)
