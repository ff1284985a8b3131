"""A tool file whose tools leave work behind that goes on between calls, where the operator lets it."""

import asyncio
import threading
import time
from pathlib import Path

from fastmcp import FastMCP

mcp: FastMCP = FastMCP("works on")
JOB = {"toolcell": {"background": True}}
TASKS: "list[asyncio.Task[None]]" = []
COUNTED: list[int] = [0]


def _write(file: Path) -> None:
    number = 0
    while True:
        number += 1
        file.write_text(f"{number:09}")
        time.sleep(0.001)


@mcp.tool(meta=JOB)
async def start(username: str) -> str:
    """Leave a task that counts, and a thread that writes."""

    async def count() -> None:
        while True:
            COUNTED[0] += 1
            Path("counted").write_text(str(COUNTED[0]))
            await asyncio.sleep(0.001)

    TASKS.append(asyncio.create_task(count()))
    threading.Thread(target=_write, args=(Path("written"),), daemon=True).start()
    while not Path("written").exists():
        await asyncio.sleep(0.001)
    return "started"


@mcp.tool(meta=JOB)
def start_quietly(username: str) -> int:
    COUNTED[0] += 1
    return COUNTED[0]


@mcp.tool
def counted(username: str) -> int:
    return COUNTED[0]


@mcp.tool
def collect(username: str) -> dict[str, object]:
    named = {"name": "written.txt", "path": str(Path("written").absolute()), "mime": "text/plain"}
    return {"results": "collected", "artifacts": [named]}


@mcp.tool
def sleep(username: str) -> str:
    """Make a file, and end too late."""
    Path("partial").touch()
    time.sleep(3600)
    return ""


@mcp.tool(meta={"toolcell": {"background": True, "worker": "fresh"}})
def alone(username: str) -> int:
    COUNTED[0] += 1
    return COUNTED[0]
