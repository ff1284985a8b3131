"""Innermost middleware of a worker's server: what a tool raised, and on which of the author's lines.

FastMCP turns an exception into a text. The contract wants to know more: its type, the author's own
frames, the denial behind it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastmcp.exceptions import DisabledError, FastMCPError, NotFoundError, ToolError, ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from pydantic import ValidationError as PydanticValidationError

from runner.hostline import strict
from runner.toolfile import author_frames
from sandbox.inside.program import Channel

__all__ = ["Witness"]

_MAX_TEXT = 8000


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
        "errno": getattr(cause, "errno", None) if isinstance(cause, OSError) else None,
        "filename": str(filename)[:4096] if isinstance(filename, str | bytes | Path) else None,
    }


def _fault(fault: Mapping[str, Any]) -> dict[str, object]:
    return {
        "argument": ".".join(str(part) for part in fault["loc"]),
        "problem": str(fault["msg"]),
        "type": str(fault["type"]),
    }
