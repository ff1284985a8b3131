"""A tool file with tools that take memory, and one that does not."""

import ctypes
import errno
import os
import time

from fastmcp import FastMCP

mcp = FastMCP("hungry")

_STEP_BYTES = 8 * 1024 * 1024


@mcp.tool
def eats(mib: int, hold_s: float = 0) -> str:
    """Take memory and keep it for a while."""
    blocks = [bytearray(b"x" * _STEP_BYTES) for _ in range(mib * 1024 * 1024 // _STEP_BYTES)]
    time.sleep(hold_s)
    return f"{len(blocks)} pieces"


@mcp.tool
def honest(n: int) -> int:
    """Square."""
    return n * n


@mcp.tool
def more_likely_to_live() -> str:
    """Try to be ended later than others where memory runs out, past the guard, which only explains."""
    library = ctypes.CDLL(None, use_errno=True)
    lines = []
    for path in (b"/proc/self/oom_score_adj", b"/proc/self/oom_adj"):
        opened = library.open(path, os.O_WRONLY)
        lines.append("opened" if opened >= 0 else errno.errorcode[ctypes.get_errno()])
    return " ".join(lines)
