"""A tool file that keeps what ordinary FastMCP files keep between calls."""

import asyncio
import contextvars
import functools
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP

OPENED: list[int] = []
NOTES: dict[str, str] = {}
TASKS: dict[str, "asyncio.Task[str]"] = {}
MARK = contextvars.ContextVar("MARK", default="unset")
LOCAL = threading.local()


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
