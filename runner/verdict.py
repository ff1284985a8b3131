"""From how a worker ended to a wire result or one error of the contract. Decides only."""

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.contract.envelope import (
    crashed,
    file_not_found,
    invalid_argument,
    invalid_result,
    network_denied,
    out_of_memory,
    outside_home,
    timed_out,
    too_large,
    tool_not_found,
    tool_raised,
)
from runner.errors import CallError
from runner.ladder import CallListener
from runner.request import WireError
from sandbox.outcome import Denial, Ending, Outcome
from sandbox.policy import Limits

__all__ = ["judge"]


def judge(
    outcome: Outcome,
    listener: CallListener,
    *,
    home: Path | None,
    limits: Limits,
    unknown: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return the wire result of a call that was answered.

    Args:
        outcome: How the worker ended.
        listener: Who listened to the call; knows its limits and its last progress.
        home: The home of the call, or None if its tool may write nothing.
        limits: The resource limits of the call.
        unknown: File arguments that named no file of the user.

    Raises:
        CallError: The call ended in an error of the contract.
        WireError: The tool's server answered with a JSON-RPC error.
    """
    match outcome.ending:
        case Ending.IDLE_TIMEOUT:
            raise timed_out(listener.deadlines, limit="idle", last_progress=listener.last_progress)
        case Ending.TOTAL_TIMEOUT:
            raise timed_out(listener.deadlines, limit="total", last_progress=listener.last_progress)
        case Ending.BROKE_PROTOCOL:
            raise invalid_result("frame", outcome.fault or "the worker sent something that is no frame")
        case Ending.CRASHED:
            raise _crash(outcome, limits.memory_bytes)
        case Ending.ANSWERED:
            return _answered(outcome, home, unknown, limits)


def _crash(outcome: Outcome, memory_bytes: int) -> CallError:
    if "MemoryError" in outcome.output[-2000:]:
        return out_of_memory(memory_bytes)
    return crashed(outcome.status, output=outcome.output[-4000:])


def _answered(
    outcome: Outcome,
    home: Path | None,
    unknown: Sequence[str],
    limits: Limits,
) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = outcome.answer or {}
    raised, result = answer.get("raised"), answer.get("result")
    if isinstance(raised, Mapping):
        if isinstance(raised.get("denied"), Mapping):
            raise _denied(raised["denied"], outcome.denials, home)
        raise _raised(raised, home, unknown, limits)
    if isinstance(answer.get("error"), Mapping):
        raise WireError(answer["error"])
    if not isinstance(result, Mapping):
        raise invalid_result("result", "the worker's answer holds no result")
    return result


def _raised(
    raised: Mapping[str, Any],
    home: Path | None,
    unknown: Sequence[str],
    limits: Limits,
) -> CallError:
    kind, type_name = raised.get("kind"), str(raised.get("type"))
    message, filename = str(raised.get("message", "")), raised.get("filename")
    if kind == "arguments":
        return _arguments(raised.get("faults"))
    if kind == "not found":
        return tool_not_found(message, [])
    if type_name == "MemoryError":
        return out_of_memory(limits.memory_bytes)
    if raised.get("errno") == errno.EFBIG:
        return too_large(None, limits.file_bytes)
    if type_name == "FileNotFoundError" and filename in unknown:
        # Which names of the user are like it, whoever can ask the store adds.
        return file_not_found(str(filename), [])
    frames = raised.get("frames")
    return tool_raised(type_name, message, frames=_lines(frames if isinstance(frames, list) else []))


def _denied(denied: Mapping[str, Any], denials: Sequence[Denial], home: Path | None) -> CallError:
    """Return the error of a denial that ended a call: of a path, or of an address on the network."""
    if not str(denied.get("operation", "")).startswith("socket."):
        return outside_home(str(denied.get("path", "")), home)
    # The kernel denies the socket, before any address is named; the guard has heard the address.
    addresses = [item.path for item in denials if item.operation.startswith("socket.") and item.path]
    host, _, port = (addresses[-1] if addresses else "").rpartition(":")
    return network_denied(host or None, int(port) if port.isdecimal() else None)


def _arguments(faults: object) -> CallError:
    listed = [fault for fault in faults if isinstance(fault, Mapping)] if isinstance(faults, list) else []
    sentences = [f"{fault.get('argument') or 'arguments'}: {fault.get('problem')}" for fault in listed]
    first = str(listed[0].get("argument")) if len(listed) == 1 else None
    return invalid_argument("; ".join(sentences) or "The arguments do not fit the tool", argument=first)


def _lines(frames: Sequence[object]) -> list[str]:
    return [
        f"{frame.get('file')}, line {frame.get('line')}, in {frame.get('function')}: {frame.get('text')}"
        for frame in frames
        if isinstance(frame, Mapping)
    ]
