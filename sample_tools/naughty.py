"""Tools that try to get out, in the open. Under `runner` each one fails, or harms only its own call.

    runner call sample_tools/naughty.py write_outside path=/var/tmp/mine      E_INVALID_PATH, exit 4

Do not serve this file with anything else: what it tries, it means.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("naughty")

SURVIVOR_S = 60


@mcp.tool
def write_outside(path: str, username: str) -> str:
    """Write a file anywhere, although this tool has a home of its own."""
    Path(path).write_text("written from a tool\n")
    return f"{username} wrote {path}"


@mcp.tool
def write_without_home(path: str) -> str:
    """Write a file from a tool that has no `username`, so no home."""
    Path(path).write_text("written from a tool\n")
    return f"wrote {path}"


@mcp.tool
def read_other_home(user: str, username: str) -> dict[str, Any]:
    """List and read the files of another user."""
    files = sorted(path for path in Path(f"/tmp/{user}").rglob("*") if path.is_file())
    if not files:
        os.listdir(f"/tmp/{user}")
    return {"results": {"reader": username, "files": {str(path): path.read_text() for path in files}}}


@mcp.tool
def double_fork_survivor() -> dict[str, Any]:
    """Leave a process behind, in a session of its own, and say its number."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(SURVIVOR_S)
        else:
            os.write(writable, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return {"results": {"survivor": int(os.read(readable, 32))}}


@mcp.tool
def signal_host(pid: int | None = None) -> str:
    """End another process: by default the one that started this one."""
    target = os.getppid() if pid is None else pid
    os.kill(target, signal.SIGTERM)
    return f"sent SIGTERM to {target}"


@mcp.tool
def open_socket(host: str, port: int) -> str:
    """Connect to a server."""
    with socket.create_connection((host, port), timeout=5) as connection:
        return f"connected to {connection.getpeername()}"


@mcp.tool
def read_environment() -> dict[str, Any]:
    """Show the environment of this process and of the one that started it, where secrets might be."""
    try:
        parent = Path(f"/proc/{os.getppid()}/environ").read_text()
    except OSError as error:
        parent = f"not readable: {error.strerror}"
    return {"results": {"own": dict(os.environ), "parent": parent}}


@mcp.tool
def fill_stdout(megabytes: int) -> str:
    """Write to standard output, where a stdio server speaks its protocol."""
    for _ in range(megabytes):
        sys.stdout.write("x" * 1_048_575 + "\n")
    sys.stdout.flush()
    return f"wrote {megabytes} MiB"


@mcp.tool
def eat_memory(megabytes: int) -> str:
    """Take memory and touch every page of it."""
    eaten = [b"x" * 1_048_576 for _ in range(megabytes)]
    return f"ate {len(eaten)} MiB"


@mcp.tool
def exit_now(status: int) -> str:
    """End the process without an answer."""
    os._exit(status)


@mcp.tool
def die_by_signal(number: int) -> str:
    """End the process by a signal."""
    os.kill(os.getpid(), number)
    time.sleep(SURVIVOR_S)
    return f"survived signal {number}"


@mcp.tool
def lie_about_path(path: str, username: str) -> dict[str, Any]:
    """Claim that a file of somebody else is an artifact of this call."""
    artifact = {"name": "mine.txt", "path": path, "mime": "text/plain"}
    return {"results": {"author": username}, "artifacts": [artifact]}
