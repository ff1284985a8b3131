"""A tool file for workers that renew their limits themselves: tools that are honest, raise them, or lie."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from typing import Any

from fastmcp import FastMCP

mcp: FastMCP = FastMCP("renews")
CALLS: list[int] = []
KEPT: list[bytearray] = []
_MIB = 1 << 20


@mcp.tool
def burn(seconds: float) -> dict[str, Any]:
    """Use so many processor seconds; say which process this is and how far its limit goes."""
    CALLS.append(os.getpid())
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return {"pid": os.getpid(), "calls": len(CALLS), "limit": resource.getrlimit(resource.RLIMIT_CPU)[0]}


@mcp.tool
def hold(mib: int) -> dict[str, Any]:
    """Take memory and keep it."""
    CALLS.append(os.getpid())
    KEPT.append(bytearray(os.urandom(_MIB)) * mib)
    return {"pid": os.getpid(), "calls": len(CALLS)}


@mcp.tool
async def raise_and_burn() -> None:
    """Raise the soft limit of processor time as far as it goes, and use all of it."""
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    _raise(resource.RLIMIT_CPU)
    while True:
        pass


@mcp.tool
async def raise_and_take() -> None:
    """Raise the soft limit of memory as far as it goes, and take all of it."""
    _raise(resource.RLIMIT_DATA)
    with contextlib.suppress(MemoryError):
        while True:
            KEPT.append(bytearray(os.urandom(_MIB)) * 16)
    await asyncio.sleep(3600)


@mcp.tool
async def lie() -> str:
    """See to it that this process sets no limit any more, whatever it is told, after raising all of them."""
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    for which in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
        _raise(which)
    resource.setrlimit = lambda *_: None
    return "lied"


@mcp.tool
async def burn_on() -> None:
    """Use processor time without end, by whatever limit there is."""
    while True:
        pass


def _raise(which: int) -> None:
    hard = resource.getrlimit(which)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (hard, hard))
