"""Prints to standard error or into a text, and does nothing slow at import."""

import contextlib
import functools
import io
import logging
import sys
import threading
import time

from fastmcp import FastMCP

mcp = FastMCP("Quiet")
log = logging.getLogger("quiet")
lock = threading.Lock()


@functools.cache
def model() -> dict[str, int]:
    time.sleep(0.1)
    return {"weight": 1}


@mcp.tool
def quiet(text: str) -> int:
    """Print where the output is read."""
    print("thinking", file=sys.stderr)
    log.info("thinking")
    with io.StringIO() as out, contextlib.redirect_stderr(out):
        print(text, file=out)
        written = len(out.getvalue())
    with lock:
        threading.Thread(target=model).start()
    return written * model()["weight"]
