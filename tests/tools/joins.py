"""A tool file whose calls wait for each other, as those of notebooks and browsers do."""

import asyncio
import os
import threading
from pathlib import Path

from fastmcp import Context, FastMCP

mcp: FastMCP = FastMCP("joins")

INSIDE: list[str] = []
ENTERED = asyncio.Event()
OPEN = asyncio.Event()
THREAD_OPEN = threading.Event()


@mcp.tool
async def meet(name: str, others: int, patience_s: float = 30) -> dict[str, object]:
    """Wait until so many calls are here."""
    INSIDE.append(name)
    ENTERED.set()
    try:
        async with asyncio.timeout(patience_s):
            while len(INSIDE) < others:
                ENTERED.clear()
                await ENTERED.wait()
        ENTERED.set()
        return {"pid": os.getpid(), "met": sorted(INSIDE)}
    except TimeoutError:
        return {"pid": os.getpid(), "met": []}


@mcp.tool(meta={"toolcell": {"worker": "own"}})
def alone() -> int:
    """Return the process id."""
    return os.getpid()


@mcp.tool
async def hold(ctx: Context, sign: str) -> str:
    """Report progress, then wait until `let_go` is called; say in a list that the end has come."""
    INSIDE.append(sign)
    try:
        await ctx.report_progress(1, 2, sign)
        await OPEN.wait()
    finally:
        INSIDE.append(f"{sign} ended")
    return sign


@mcp.tool
def hold_thread() -> str:
    """Wait in a thread, which nobody can cancel."""
    INSIDE.append("thread")
    THREAD_OPEN.wait(60)
    return "thread"


@mcp.tool
def inside() -> dict[str, object]:
    """Return who is or was here, and in which process."""
    return {"pid": os.getpid(), "inside": list(INSIDE)}


@mcp.tool
async def let_go() -> None:
    """Let those that hold go on."""
    OPEN.set()


@mcp.tool
async def crash() -> None:
    """End the process."""
    os._exit(3)


@mcp.tool
async def damage() -> None:
    """Take away what the process needs to answer."""
    import runner.worker.program

    del runner.worker.program.FOLDED  # type: ignore[attr-defined]


@mcp.tool
async def read(path: str, others: int) -> str:
    """Read a file while other calls run."""
    await meet(path, others)
    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__
