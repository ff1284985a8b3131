"""A tool file that keeps what ordinary FastMCP files keep between calls."""

import asyncio
import contextvars
import functools
import http.client
import os
import sqlite3
import sys
import threading
import types
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP

OPENED: list[int] = []
NOTES: dict[str, str] = {}
TASKS: dict[str, "asyncio.Task[str]"] = {}
MARK = contextvars.ContextVar("MARK", default="unset")
LOCAL = threading.local()
CONNECTIONS: list[http.client.HTTPConnection] = []
THREADS = ThreadPoolExecutor(max_workers=1)


@asynccontextmanager
async def lifespan(_server: FastMCP) -> AsyncIterator[dict[str, Any]]:
    OPENED.append(os.getpid())
    yield {"opened": len(OPENED)}


mcp: FastMCP = FastMCP("remembers", lifespan=lifespan)


@functools.lru_cache
def slow(number: int) -> int:
    return number * number


@mcp.tool
def note(name: str, text: str) -> dict[str, str]:
    NOTES[name] = text
    return dict(NOTES)


@mcp.tool
def square(number: int) -> list[int]:
    slow(number)
    return [slow.cache_info().hits, slow.cache_info().misses]


@mcp.tool
def database(value: int) -> list[int]:
    """Use a connection that was opened in a thread of a call before: SQLite insists on that thread."""
    if not hasattr(LOCAL, "connection"):
        LOCAL.connection = sqlite3.connect(":memory:")
        LOCAL.connection.execute("create table kept (value integer)")
    LOCAL.connection.execute("insert into kept values (?)", (value,))
    return [row[0] for row in LOCAL.connection.execute("select value from kept")]


@mcp.tool
def fetch(port: int) -> str:
    """Send a request over a connection that an earlier call opened; return its answer."""
    if not CONNECTIONS:
        CONNECTIONS.append(http.client.HTTPConnection("127.0.0.1", port))
    CONNECTIONS[0].request("GET", "/")
    return CONNECTIONS[0].getresponse().read().decode()


@mcp.tool
def lazily() -> bool:
    """Import a library at the first call; say whether it was there."""
    was_there = "graphlib" in sys.modules
    import graphlib

    return was_there and graphlib is sys.modules["graphlib"]


@mcp.tool
def in_a_thread() -> int:
    """Work in a pool of threads, whose one thread stays; return its id."""
    return THREADS.submit(threading.get_native_id).result()


@mcp.tool
def spoil() -> str:
    """Replace what the framework needs to answer anything."""
    for name in ("json", "fastmcp"):
        sys.modules[name] = types.ModuleType(name)
    return "spoiled"


@mcp.tool
async def mark(value: str) -> str:
    before = MARK.get()
    MARK.set(value)
    return before


@mcp.tool
async def begin(name: str) -> str:
    async def work() -> str:
        for _ in range(3):
            await asyncio.sleep(0.001)
        return f"{name} is done"

    TASKS[name] = asyncio.create_task(work())
    return "begun"


@mcp.tool
async def finish(name: str) -> str:
    return await TASKS[name]


@mcp.tool
def life(ctx: Context) -> list[int]:
    assert ctx.request_context is not None
    return [ctx.request_context.lifespan_context["opened"], len(OPENED)]


@mcp.tool(meta={"toolcell": {"worker": "fresh"}})
def alone() -> int:
    NOTES["alone"] = "was here"
    return len(NOTES)


@mcp.tool
def fails() -> str:
    raise ValueError("no")


@mcp.tool
def process() -> int:
    return os.getpid()


@mcp.tool
def planted(username: str) -> dict[str, object]:
    """Return a file, and leave a thread behind that writes to it without end."""
    path = Path("report.txt")

    def write() -> None:
        number = 0
        while True:
            number += 1
            path.write_text(f"{number:09}")

    threading.Thread(target=write, daemon=True).start()
    while not path.exists():
        pass
    named = {"name": path.name, "path": str(path.absolute()), "mime": "text/plain"}
    return {"results": "written", "artifacts": [named]}
