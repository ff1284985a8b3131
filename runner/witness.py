"""Innermost middleware of a worker's server: what a tool raised, and on which of the author's lines.

FastMCP turns an exception into a text. The contract wants to know more: its type, the author's own
frames, the denial behind it, the limit that it ran into.
"""

import errno
import mmap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastmcp.exceptions import DisabledError, FastMCPError, NotFoundError, ToolError, ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from pydantic import ValidationError as PydanticValidationError

from runner.hostline import strict
from runner.limits import DISK_FULL
from runner.toolfile import author_frames
from sandbox.inside.program import Channel

__all__ = ["Witness"]

_MAX_TEXT = 8000
# What the C library asks for as the stack of a thread.
_STACK_BYTES = 8 * 1024 * 1024
_LIMITS = {
    errno.ENOMEM: "memory_bytes",
    errno.EMFILE: "open_files",
    errno.EFBIG: "file_bytes",
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
}


class Witness(Middleware):
    """Innermost middleware: remembers what a tool raised, and on which of the author's lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.channel: Channel | None = None
        self.raised: dict[str, object] | None = None

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Run the tool, and remember what it raises on the way out."""
        try:
            return await call_next(context)
        except Exception as error:
            self.raised = _describe(error, self._folder)
            denial = self.channel.explain(error) if self.channel is not None else None
            if denial is not None:
                self.raised["denied"] = {"operation": denial.operation, "path": denial.path}
            raise


def _describe(error: Exception, folder: Path) -> dict[str, object]:
    """Say in JSON what a tool raised; the cause that the author wrote, not FastMCP's wrapping."""
    if isinstance(error, ValidationError) and isinstance(error.__cause__, PydanticValidationError):
        faults = error.__cause__.errors(include_url=False, include_context=False, include_input=False)
        return {"kind": "arguments", "faults": strict([_fault(fault) for fault in faults])}
    if isinstance(error, NotFoundError | DisabledError):
        return {"kind": "not found", "message": str(error)[:_MAX_TEXT]}
    cause: BaseException = error
    while isinstance(cause, FastMCPError) and cause.__cause__ is not None:
        cause = cause.__cause__
    filename = getattr(cause, "filename", None)
    return {
        "kind": "tool error" if isinstance(cause, ToolError) else "raised",
        "type": type(cause).__name__,
        "message": str(cause)[:_MAX_TEXT],
        "frames": author_frames(cause, folder)[-20:],
        "limit": _limit_behind(cause),
        "filename": str(filename)[:4096] if isinstance(filename, str | bytes | Path) else None,
    }


def _limit_behind(error: BaseException) -> str | None:
    """Return the limit that an error of the system stands for, if it stands for one."""
    if isinstance(error, MemoryError):
        return "memory_bytes"
    if isinstance(error, OSError) and error.errno in _LIMITS:
        return _LIMITS[error.errno]
    # Also what a pipe says that has nothing to read yet; so it is tried.
    is_sign = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    if is_sign or (isinstance(error, OSError) and error.errno == errno.EAGAIN):
        return _limit_of_starting()
    return None


def _limit_of_starting() -> str | None:
    """Return the limit that keeps a thread from being started now, if one does."""
    try:
        threading.Thread(target=_nothing).start()
    except RuntimeError:
        try:
            mmap.mmap(-1, _STACK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            return "memory_bytes"
        return "processes"
    return None


def _nothing() -> None:
    """Run as a thread that ends at once."""


def _fault(fault: Mapping[str, Any]) -> dict[str, object]:
    return {
        "argument": ".".join(str(part) for part in fault["loc"]),
        "problem": str(fault["msg"]),
        "type": str(fault["type"]),
    }
