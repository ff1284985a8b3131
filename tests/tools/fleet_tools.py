"""Tools for a fleet: what they keep in memory, how long they take, how often they have run."""

import asyncio
import base64
import os
import socket
import time
from pathlib import Path

from fastmcp import Context, FastMCP
from fastmcp.utilities.types import Image

mcp = FastMCP("fleet tools")
_calls = 0


def _ran(runs: str, marker: str) -> None:
    """Note that code of a tool has run, where a test counts it."""
    with Path(runs, marker).open("a") as noted:
        noted.write(f"{os.getpid()}\n")


def _takes(runs: str, marker: str, seconds: float) -> None:
    """Take so long, or until the test that counts the runs ends them."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not Path(runs, f"{marker}.end").exists():
        time.sleep(0.02)


@mcp.tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@mcp.tool
def counted() -> int:
    """Return the number of calls that this process has served."""
    global _calls
    _calls += 1
    return _calls


@mcp.tool
def busy(seconds: float) -> int:
    """Use the processor."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return 1


@mcp.tool
def keep(username: str, text: str, name: str = "kept.txt") -> dict:
    """Write a file and return it."""
    path = Path.home() / name
    path.write_text(text)
    return {"results": "kept", "artifacts": [{"name": name, "path": str(path), "mime": "text/plain"}]}


@mcp.tool
def leave(username: str, text: str) -> str:
    """Write a file and do not return it."""
    (Path.home() / "left.txt").write_text(text)
    return "left"


@mcp.tool
def picture(kib: int) -> Image:
    """Return an image of so many KiB."""
    return Image(data=bytes(range(256)) * 4 * kib, format="png")


@mcp.tool
def words(text: str) -> dict:
    """Return a small file by its bytes."""
    data = base64.b64encode(text.encode()).decode()
    return {"results": "made", "artifacts": [{"name": "words.txt", "b64": data}]}


@mcp.tool
def content(kib: int) -> dict:
    """Return a file by its bytes."""
    data = base64.b64encode(bytes(range(256)) * 4 * kib).decode()
    return {"results": "made", "artifacts": [{"name": "made.bin", "b64": data}]}


@mcp.tool
def text(kib: int) -> str:
    """Return a text of so many KiB."""
    return "x" * 1024 * kib


@mcp.tool
def rows(count: int) -> dict:
    """Return data."""
    return {"rows": [{"n": number, "name": f"zeile {number} ä"} for number in range(count)]}


@mcp.tool
def read_file(username: str, filename: str) -> str:
    """Read a file of the user."""
    return Path(filename).read_text()


@mcp.tool
def fails() -> str:
    """Raise."""
    raise ValueError("it is what this tool does")


@mcp.tool
async def ask_name(ctx: Context) -> str:
    """Elicit a name from the client."""
    got = await ctx.elicit("What is your name?", response_type=str)
    return f"hello {got.data}" if got.action == "accept" else got.action


@mcp.tool
async def steps(count: int, ctx: Context) -> str:
    """Report each step."""
    for step in range(count):
        await ctx.report_progress(step, count, f"step {step}")
    return "done"


@mcp.tool
def once(runs: str, marker: str, seconds: float) -> str:
    """Do something that must not be done twice, and take so long for it."""
    _ran(runs, marker)
    _takes(runs, marker, seconds)
    return "done"


@mcp.tool(annotations={"idempotentHint": True})
def again(runs: str, marker: str, seconds: float) -> str:
    """Do something that may be done twice."""
    _ran(runs, marker)
    _takes(runs, marker, seconds)
    return "done"


@mcp.tool
async def remember(key: str, value: str, ctx: Context) -> str:
    """Keep something for the session."""
    await ctx.set_state(key, value)
    return "kept"


@mcp.tool
async def recall(key: str, ctx: Context) -> str | None:
    """Return what was kept."""
    return await ctx.get_state(key)


@mcp.tool
def knock(host: str, port: int) -> str:
    """Send PING to a server; return its answer, or the reason it cannot be reached."""
    family = socket.AF_UNIX if host.startswith("/") else socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as line:
            line.settimeout(5)
            line.connect(host if family == socket.AF_UNIX else (host, port))
            line.sendall(b"PING\r\n")
            return line.recv(100).decode()
    except OSError as error:
        return f"{type(error).__name__}: {error}"


@mcp.tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@mcp.tool
def whose(username: str) -> str:
    """Return the user of the call."""
    return username
