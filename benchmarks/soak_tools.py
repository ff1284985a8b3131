"""The tool file of the soak: honest tools, and tools that try everything to leave something behind."""

import asyncio
import contextlib
import ctypes
import hashlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP

mcp = FastMCP("soak")

MIB = 1024 * 1024
CALLS: list[int] = []


@mcp.tool
def square(number: int) -> dict[str, Any]:
    """Compute, and say how many calls this process has had, and what it finds of others."""
    CALLS.append(number)
    found = [name for name in os.environ if name.startswith("SOAK")]
    return {"results": {"square": number * number, "calls": len(CALLS), "found": found}}


@mcp.tool
def keep(username: str, text: str) -> dict[str, Any]:
    """Write a file of the home, read it and remove it."""
    path = Path(os.environ["HOME"], f"kept-{os.urandom(8).hex()}.txt")
    path.write_text(text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()
    return {"results": {"digest": digest}}


@mcp.tool
def report(username: str, number: int) -> dict[str, Any]:
    """Return a file."""
    path = Path(os.environ["HOME"], f"report-{number}.txt")
    path.write_text(f"report {number}\n" * 100)
    return {"results": {"number": number}, "artifacts": [{"path": str(path), "name": path.name}]}


@mcp.tool
def asks_a_program(text: str) -> dict[str, Any]:
    """Run a program."""
    done = subprocess.run(["/bin/cat"], input=text.encode(), capture_output=True, check=True)
    return {"results": {"text": done.stdout.decode()}}


@mcp.tool
def works_in_threads(count: int) -> dict[str, Any]:
    """Compute in threads."""
    sums: list[int] = []
    threads = [threading.Thread(target=lambda n=n: sums.append(sum(range(n)))) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"results": {"sum": sum(sums)}}


def child(seconds: float = 3600) -> None:
    """Start a process that stays."""
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        time.sleep(seconds)
        os._exit(0)


@mcp.tool
def fork_bomb() -> str:
    """Fork in every process, for ever or until it is refused."""
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)


@mcp.tool
def double_forks(depth: int) -> str:
    """Leave orphans behind that lead sessions, ignore signals and hold what they inherited."""
    for _ in range(depth):
        if os.fork() == 0:
            os.setsid()
            child()
            os._exit(0)
    return "left"


@mcp.tool
def stops() -> str:
    """Stop, with a child that is stopped too."""
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    return "went on"


@mcp.tool
def eats(mib: int) -> str:
    """Take memory."""
    return str(len(b"x" * (mib * MIB)))


@mcp.tool
def hides(username: str, mib: int) -> str:
    """Hold a long file that has no name."""
    path = Path(os.environ["HOME"], "hidden")
    with path.open("wb") as file:
        path.unlink()
        for _ in range(mib):
            file.write(os.urandom(MIB))
        time.sleep(3600)
    return "never"


@mcp.tool
def litters(username: str, count: int) -> str:
    """Leave files in the home."""
    for number in range(count):
        Path(os.environ["HOME"], f"litter-{number}-{os.urandom(4).hex()}").write_text("x")
    return "littered"


@mcp.tool
def sleeps() -> str:
    """Be silent."""
    time.sleep(3600)
    return "never"


@mcp.tool
async def chatters(ctx: Context) -> str:
    """Report progress for ever."""
    while True:
        await ctx.report_progress(1, None, "still here")
        await asyncio.sleep(0.02)


@mcp.tool
def crashes(number: int) -> str:
    """Die."""
    os.kill(os.getpid(), number)
    time.sleep(3600)
    return "never"


@mcp.tool
def exits(status: int) -> str:
    """End without an answer."""
    os._exit(status)


@mcp.tool
def floods(mib: int) -> str:
    """Print without end, nearly."""
    for _ in range(mib):
        sys.stdout.write("x" * MIB)
    return "flooded"


@mcp.tool
def mumbles() -> str:
    """Write garbage instead of frames to every open descriptor."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\xff" * 256)
    time.sleep(3600)
    return "never"


@mcp.tool
def answers_at_length(size: int) -> str:
    """Answer more than may be answered."""
    return "x" * size


@mcp.tool
def opens_sockets() -> str:
    """Open sockets of every kind; return which could be opened."""
    opened = []
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            with contextlib.suppress(OSError):
                opened.append(str(socket.socket(family, kind)))
    return ", ".join(opened)


@mcp.tool
def makes_sysv(key: int) -> str:
    """Make System V objects and a POSIX queue; return which could be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = {
        "shm": libc.shmget(key, 4096, 0o1666),
        "sem": libc.semget(key, 1, 0o1666),
        "msg": libc.msgget(key, 0o1666),
        "queue": libc.mq_open(b"/soak", os.O_CREAT | os.O_RDWR, 0o666, None),
    }
    return ", ".join(name for name, answer in made.items() if answer >= 0)


@mcp.tool
def plants(token: str) -> str:
    """Write where others would find it; return where it could."""
    planted = []
    common = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/etc")  # noqa: S108 - that it is common is the point
    for folder in (*common, sys.prefix, os.path.dirname(__file__)):
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{folder}/{token}", os.O_CREAT | os.O_WRONLY, 0o666)
            os.close(descriptor)
            planted.append(folder)
    return ", ".join(planted)


@mcp.tool
def poisons() -> str:
    """Change everything of this process that another call could see, if it were the same."""
    os.environ["SOAK_POISON"] = "1"
    CALLS.extend([0] * 100)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
    return "poisoned"


@mcp.tool
def opens_files() -> str:
    """Open files until it is refused."""
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    return "opened" if held else "none"


@mcp.tool
def sends_descriptors() -> str:
    """Send descriptors over sockets, unread, until the kernel refuses more."""
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            socket.send_fds(held[-1][0], [b"x"], [0] * 250)
    time.sleep(0.2)
    return "sent"
