"""Innermost middleware of a worker's server: what a tool raised, and on which of the author's lines.

FastMCP turns an exception into a text. The contract wants to know more: its type, the author's own
frames, the denial behind it, the limit that it ran into.
"""

import asyncio
import errno
import mmap
import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastmcp.exceptions import DisabledError, FastMCPError, NotFoundError, ToolError, ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from mcp.server.mcpserver.exceptions import MCPServerError
from mcp.server.mcpserver.exceptions import ToolError as SdkToolError
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError as PydanticValidationError

from runner.settings.resource_limits import DISK_FULL
from runner.worker.call_scope import current
from runner.worker.host_channel import strict
from runner.worker.long_answers import least_bytes
from runner.worker.toolfile import author_frames
from runner.worker.wire import SENT_MAX_CHARS

__all__ = ["FailureCapture"]

# All that FastMCP says where it masks; a server may be mounted by one that does not.
_MASKED = re.compile(r"Error calling tool (?:'[^']*'|\"[^\"]*\")")
# Of a chain of exceptions, and of the notes of each.
_MOST_LINKS = 20
_MOST_CHAIN_CHARS = 5 * SENT_MAX_CHARS
# What the C library asks for as the stack of a thread.
_STACK_BYTES = 8 * 1024 * 1024
_LIMITS = {
    errno.ENOMEM: "memory_bytes",
    errno.EMFILE: "open_files",
    errno.EFBIG: "file_bytes",
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
}


class FailureCapture(Middleware):
    """Innermost middleware: notes in the scope of a call what its tool raised, and on which lines.

    Attributes:
        masks: Whether the server is made with `mask_error_details`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.masks = False

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Run the tool, and remember what it raises on the way out."""
        return await self.seen(call_next(context), tool=str(context.message.name))

    async def seen(self, running: Awaitable[Any], *, tool: str | None = None) -> Any:
        """Await a running tool, and remember what it raises on the way out."""
        try:
            result = await running
        except MCPError:
            # An error of the protocol, which the tool wants its client to get as it is.
            raise
        except GeneratorExit:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancels this call: the tool raised it, or awaited what it had cancelled itself.
            raise self._left(error, tool) from None
        except Exception as error:
            self._note(error, tool)
            faulty = error.__cause__
            if isinstance(faulty, PydanticValidationError) and faulty.error_count() > _MOST_LINKS:
                # Its message describes each fault, and a client can send a million.
                raise ToolError(f"{faulty.error_count()} faults in the arguments") from None
            raise
        except BaseException as error:  # noqa: BLE001 - raised to the waiter, instead of ending the worker
            raise self._left(error, tool) from None
        used = least_bytes(result) if isinstance(result, ToolResult) else 0
        scope = current()
        if scope is not None and used > scope.most_bytes:
            # Written as JSON it would take many times its memory and seconds, to be refused all the same.
            scope.raised = {"kind": "too long", "used": used}
            raise ToolError("the result is too long")
        return result

    def _note(self, error: Exception, tool: str | None) -> None:
        """Keep an error, to say later what the author's code raised."""
        scope = current()
        if scope is None:
            return
        raised = scope.raised = _describe(error, self._folder)
        if tool is not None and raised["kind"] == "not found":
            raised["tool"] = tool
        denial = scope.channel.explain(error)
        if denial is not None:
            raised["denied"] = {
                "operation": denial.operation,
                "path": denial.path,
                "wants": denial.wants,
            }
        if self.masks or _MASKED.fullmatch(str(error)):
            raised["told"] = str(error)[:SENT_MAX_CHARS]

    def _left(self, error: BaseException, tool: str | None) -> ToolError:
        """Record a BaseException, which the framework does not catch; return an error for it."""
        reason = _left_by(error)
        scope, prefix = current(), "Error calling tool" if tool is None else f"Error calling tool {tool!r}"
        raised = {**_describe(error, self._folder), "message": reason}
        if scope is not None:
            scope.raised = raised
        if not self.masks:
            return ToolError(f"{prefix}: {reason}")
        raised["told"] = prefix
        return ToolError(prefix)


def _left_by(error: BaseException) -> str:
    """Return a sentence for a BaseException, which `except Exception` does not catch."""
    if isinstance(error, SystemExit):
        shown = "" if error.code is None else repr(error.code)[:SENT_MAX_CHARS]
        return f"the tool called exit({shown}), which ends a program: return a value, or raise an error"
    text = f": {error}"[:SENT_MAX_CHARS] if str(error) else ""
    return f"the tool raised {type(error).__name__}, which is not an Exception{text}"


def _describe(error: BaseException, folder: Path) -> dict[str, object]:
    """Describe a tool's exception in JSON: the author's cause, not FastMCP's wrapper."""
    is_of_arguments = isinstance(error, ValidationError) or type(error) is SdkToolError
    if is_of_arguments and isinstance(error.__cause__, PydanticValidationError):
        faults = error.__cause__.errors(include_url=False, include_context=False)
        return {"kind": "arguments", "faults": strict([_fault(fault) for fault in faults[:_MOST_LINKS]])}
    if isinstance(error, NotFoundError | DisabledError) or _is_unknown(error):
        return {"kind": "not found", "message": str(error)[:SENT_MAX_CHARS]}
    cause: BaseException = error
    while isinstance(cause, FastMCPError | MCPServerError) and cause.__cause__ is not None:
        cause = cause.__cause__
    filename = getattr(cause, "filename", None)
    return {
        "kind": "tool error" if isinstance(cause, ToolError | SdkToolError) else "raised",
        **_facts(cause, folder),
        "chain": _chain(cause, folder),
        "limit": _limit_behind(cause),
        "filename": str(filename)[:4096] if isinstance(filename, str | bytes | Path) else None,
        "is_program": isinstance(cause, FileNotFoundError) and _is_of_program(cause),
    }


def _is_of_program(error: FileNotFoundError) -> bool:
    """Return whether `subprocess` did not find a program; of a working folder it says it likewise."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = None if trace is None else trace.tb_frame
    return (
        frame is not None
        and frame.f_code.co_filename == subprocess.__file__
        and frame.f_locals.get("cwd") != error.filename
    )


def _facts(error: BaseException, folder: Path) -> dict[str, object]:
    notes = getattr(error, "__notes__", None)
    listed = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an author's own method
        message = ""
    return {
        "type": type(error).__name__,
        "message": message[:SENT_MAX_CHARS],
        "notes": "\n".join(listed[:_MOST_LINKS])[:SENT_MAX_CHARS],
        "frames": author_frames(error, folder)[-20:],
    }


def _chain(error: BaseException, folder: Path) -> list[dict[str, object]]:
    """Return the exceptions behind an error, in the order of their distance from it: bounded, each once."""
    found: list[dict[str, object]] = []
    waiting, seen, chars = deque(_behind(error)), {id(error)}, 0
    while waiting and len(found) < _MOST_LINKS and chars < _MOST_CHAIN_CHARS:
        relation, each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        facts = _facts(each, folder)
        chars += len(str(facts["message"])) + len(str(facts["notes"]))
        found.append({"relation": relation, **facts})
        waiting.extend(_behind(each))
    return found


def _behind(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        yield from (("member", each) for each in error.exceptions[:_MOST_LINKS])
    if error.__cause__ is not None:
        yield "cause", error.__cause__
    elif error.__context__ is not None and not error.__suppress_context__:
        yield "context", error.__context__


def _is_unknown(error: BaseException) -> bool:
    """Return whether a server of the SDK says so of a name that it does not know."""
    return type(error) is SdkToolError and error.__cause__ is None and str(error).startswith("Unknown tool: ")


def _limit_behind(error: BaseException) -> str | None:
    """Return the limit that an error of the system stands for, if it stands for one."""
    if isinstance(error, MemoryError):
        return "memory_bytes"
    # An author's own words stand for a limit of another system, such as a full mailbox.
    if isinstance(error, OSError) and error.errno in _LIMITS:
        is_of_kernel = os.strerror(error.errno) in str(error.strerror)
        return _LIMITS[error.errno] if is_of_kernel else None
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
    # Of a list in JSON text, which looks as it should.
    is_text = isinstance(fault["input"], str) and str(fault["type"]).endswith("_type")
    return {
        "argument": ".".join(str(part) for part in fault["loc"]),
        "problem": f"{fault['msg']}, got a string" if is_text else str(fault["msg"]),
        "type": str(fault["type"]),
    }
