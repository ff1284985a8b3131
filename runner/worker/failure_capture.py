"""Innermost middleware of a worker's server: captures a tool's exception and the author's lines in it.

FastMCP turns an exception into a text. The contract needs more: its type, the author's own frames, the
denial that caused it, the limit that it exceeded.
"""

import asyncio
import errno
import json
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
from runner.worker.call_scope import current, strict
from runner.worker.long_answers import least_bytes
from runner.worker.toolfile import author_frames, missing_variable
from runner.worker.wire import SENT_MAX_CHARS

__all__ = ["FailureCapture"]

# FastMCP's whole message if it masks; a masking server may be mounted by one that does not mask.
_MASKED = re.compile(r"Error calling tool (?:'[^']*'|\"[^\"]*\")")
# Most exceptions of a chain, and most notes of each.
_MOST_LINKS = 20
_SHOWN_CHARS = 60
_MOST_CHAIN_CHARS = 5 * SENT_MAX_CHARS
# Stack size that the C library requests for a thread.
_STACK_BYTES = 8 * 1024 * 1024
_LIMITS = {
    errno.ENOMEM: "memory_bytes",
    errno.EMFILE: "open_files",
    errno.EFBIG: "file_bytes",
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
}


class FailureCapture(Middleware):
    """Innermost middleware: records in the scope of a call the exception of its tool, with its lines.

    Attributes:
        masks: Whether the server is made with `mask_error_details`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.masks = False

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Run the tool, and record its exception."""
        return await self.seen(call_next(context), tool=str(context.message.name))

    async def seen(self, running: Awaitable[Any], *, tool: str | None = None) -> Any:
        """Await a running tool, and record its exception."""
        try:
            result = await running
        except MCPError:
            # A protocol error, which the tool means for its client.
            _record(None)
            raise
        except GeneratorExit:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This call is not cancelled: the tool raised it, or awaited a task that it had cancelled itself.
            raise self.left(error, tool) from None
        except Exception as error:
            self._note(error, tool)
            faulty = error.__cause__
            if isinstance(faulty, PydanticValidationError) and faulty.error_count() > _MOST_LINKS:
                # Its message describes each fault, and a client can cause a million.
                raise ToolError(f"{faulty.error_count()} faults in the arguments") from None
            raise
        except BaseException as error:  # noqa: BLE001 - raised to the waiter, instead of ending the worker
            raise self.left(error, tool) from None
        # An earlier exception was of a tool that this one called, or of an attempt before this one.
        _record(None)
        used = least_bytes(result) if isinstance(result, ToolResult) else 0
        scope = current()
        if scope is not None and used > scope.most_bytes:
            # Encoding it as JSON would take seconds and many times its memory, only to be refused.
            scope.raised = {"kind": "too long", "used": used}
            raise ToolError("the result is too long")
        return result

    def _note(self, error: Exception, tool: str | None) -> None:
        """Record an exception of the author's code."""
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

    def left(self, error: BaseException, tool: str | None = None) -> ToolError:
        """Record a BaseException, which the framework does not catch; return an error for it."""
        reason = _left_by(error)
        prefix = "Error calling tool" if tool is None else f"Error calling tool {tool!r}"
        raised = {**_describe(error, self._folder), "message": reason}
        _record(raised)
        if not self.masks:
            return ToolError(f"{prefix}: {reason}")
        raised["told"] = prefix
        return ToolError(prefix)


def _record(raised: dict[str, object] | None) -> None:
    """Replace the exception that is recorded in the scope of this call."""
    scope = current()
    if scope is not None:
        scope.raised = raised


def _left_by(error: BaseException) -> str:
    """Return a sentence for a BaseException, which `except Exception` does not catch."""
    task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    if task is not None and task.cancelling():
        return "the tool cancelled the task of its own call: return a value, or raise an error"
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
    facts = _facts(cause, folder)
    return {
        "kind": "tool error" if isinstance(cause, ToolError | SdkToolError) else "raised",
        **facts,
        "lacks": missing_variable(cause, str(facts["message"]), folder),
        "chain": _chain(cause, folder),
        "limit": _limit_behind(cause),
        "filename": str(filename)[:4096] if isinstance(filename, str | bytes | Path) else None,
        "is_program": isinstance(cause, FileNotFoundError) and _is_of_program(cause),
    }


def _is_of_program(error: FileNotFoundError) -> bool:
    """Return whether `subprocess` did not find a program; a missing working folder raises the same error."""
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
    """Return the causes and contexts of an error, the nearest first: a bounded number, each once."""
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
    """Return whether an error of a server of the SDK means that a tool's name is unknown."""
    return type(error) is SdkToolError and error.__cause__ is None and str(error).startswith("Unknown tool: ")


def _limit_behind(error: BaseException) -> str | None:
    """Return the resource limit that a system error indicates, if any."""
    if isinstance(error, MemoryError):
        return "memory_bytes"
    # A message of the author's own means a limit of another system, such as a full mailbox.
    if isinstance(error, OSError) and error.errno in _LIMITS:
        is_of_kernel = os.strerror(error.errno) in str(error.strerror)
        return _LIMITS[error.errno] if is_of_kernel else None
    # EAGAIN also comes from an empty pipe; so starting a thread is tried.
    is_sign = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    if is_sign or (isinstance(error, OSError) and error.errno == errno.EAGAIN):
        return _limit_of_starting()
    return None


def _limit_of_starting() -> str | None:
    """Return the limit that prevents starting a thread now, if any."""
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
    # The input of these faults is the object of all arguments.
    is_about_name = str(fault["type"]).startswith(("missing", "unexpected"))
    return {
        "argument": ".".join(str(part) for part in fault["loc"]),
        "problem": str(fault["msg"]) if is_about_name else f"{fault['msg']}, got {_shown(fault['input'])}",
    }


def _shown(value: object) -> str:
    """Return an argument in a few words: a list sent as JSON text, for example, is a string."""
    match value:
        case str():
            more = "…" if len(value) > _SHOWN_CHARS else ""
            return f"the string {json.dumps(value[:_SHOWN_CHARS], ensure_ascii=False)}{more}"
        case None | bool() | float():
            return json.dumps(value)
        case int() if value.bit_length() <= 64:
            return str(value)
        case list() | tuple():
            return "an array"
        case dict():
            return "an object"
        case _:
            return f"a value of type {type(value).__name__}"
