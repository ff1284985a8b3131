"""Tools whose forms, logs and denials try the looks of the Playground."""

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fastmcp import Context, FastMCP
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

mcp = FastMCP("looks")


class Place(BaseModel):
    """A place to deliver to."""

    town: str
    street: str | None


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
def greet(name: Annotated[str, Field(examples=["Ada"])], times: int = 1) -> str:
    """Greet somebody, as often as you like."""
    return " ".join([f"Hello, {name}."] * times)


@mcp.tool
def send(title: str, place: Place, note: str | None = None, copies: int = 1) -> str:
    """Pretend to send something."""
    return f"{title} to {place.town}, {copies} times, {note or 'no note'}"


@mcp.tool
async def chatter(ctx: Context, rows: int = 400) -> str:
    """Write a long log, with lines that have no place to break."""
    for row in range(rows):
        await ctx.info(f"{row} " + ("x" * 1500 if row % 50 == 0 else "a line"))
    return "said"


@mcp.tool
def reaches(family: str | None = None, kind: str = "SOCK_STREAM") -> str:
    """Try to reach a server, write elsewhere and run a program, and go on each time; then make a socket."""
    with suppress(OSError):
        socket.create_connection(("192.0.2.7", 8443), timeout=2).close()
    with suppress(OSError):
        socket.getaddrinfo("data.example", 443)
    with suppress(OSError):
        Path("/srv/reports/today.txt").write_text("x")
    with suppress(OSError):
        Path("/etc/toolcell-forbidden").write_text("x")
    with suppress(OSError):
        Path("/dev/toolcell").write_text("x")
    with suppress(OSError):
        subprocess.run(["/usr/bin/env"], check=False)
    if family is not None:
        socket.socket(getattr(socket, family), getattr(socket, kind)).close()
    return "went on"


@mcp.prompt
def summary(text: str) -> str:
    """Sum a text up."""
    return f"Sum up: {text}"


@mcp.resource("data://towns")
def towns() -> str:
    """List towns."""
    return "Ulm"


@mcp.tool
def wait() -> str:
    """Wait without output for a while."""
    time.sleep(20)
    return "waited"


@mcp.tool
def ping() -> str:
    """Answer at once."""
    return "pong"
