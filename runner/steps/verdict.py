"""Conversion of a worker's outcome to a wire result or an error of the contract. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.contract.error_messages import (
    ALLOW_ENV,
    ALLOW_NET,
    ALLOW_SOCKETS,
    crashed,
    file_not_found,
    invalid_argument,
    invalid_result,
    legible,
    network_denied,
    no_temporary_folder,
    outside_home,
    own_files_denied,
    program_denied,
    socket_denied,
    timed_out,
    tool_not_found,
    tool_raised,
)
from runner.contract.jsonable import NotJsonError, jsonable
from runner.contract.limit_errors import disk_full, over_limit, server_memory_full
from runner.contract.missed_network import missed_network
from runner.errors import CallError, Code
from runner.settings.lendable import flag_for, within
from runner.settings.resource_limits import DISK_FULL
from runner.settings.rights import Rights
from runner.steps.listener import CallListener
from runner.steps.tool_output import frame_lines
from runner.worker.long_answers import FOLDED, unfolded
from runner.worker.wire import WireError
from sandbox.denials.paths_in_errors import wants_socket
from sandbox.host.memory_guard import SERVER_MEMORY
from sandbox.outcome import Denial, Ending, Outcome, Reached
from sandbox.policy import Limits

__all__ = ["judge"]

# Folders of processes in /proc, as they are named there.
_OF_PROCESSES = re.compile(r"/proc/(?:self|thread-self|[0-9]+)(?:/|$)")
# What `tempfile` says once it has tried all folders that it knows. Source: CPython, Lib/tempfile.py.
_NO_TEMPORARY = "[Errno 2] No usable temporary directory found in "
# What a tool raised itself, and so has words of its author's.
_SAID = ("tool error", "raised")
# What the SDK makes of an exception that nobody has made anything of, beside its code 0 in sessions.
_OF_THE_SDK = ("Internal server error", "Invalid request parameters")
# Errors with words of a tool or of its author.
_OF_TOOLS = (Code.E_TOOL, Code.E_INVALID_PATH, Code.E_NETWORK_DENIED)
_WRAPPED = "Error calling tool "
# What a worker may say that it ran into; what else is limited the host sees for itself.
_FILE = "file_bytes"
# A worker may name any number.
_MOST_FAULTS = 20
_MOST_LINKS = 20
# A variable of the environment, as authors and libraries name one that they lack.
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9]{0,60}(?:_[A-Z0-9]{1,60}){1,10}(?![A-Za-z0-9_])")
_LACKS_VARIABLE = re.compile(r"\b(?:environment|env|variable)\b", re.I)
_MOST_SEARCHED = 4000
_TOLD = ("memory_bytes", "open_files", _FILE, "processes", DISK_FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Visibility of homes and of other users' folders for a call.

    Attributes:
        home: The home of the call, or None.
        homes: The folder of homes.
        unseen: Folders that are empty for tools but for what is theirs.
        rights: Returns what the tool may do beyond its home, where that is known.
    """

    home: Path | None
    homes: Path
    unseen: Sequence[Path]
    rights: Callable[[], Rights] | None

    def flag(self, path: str, wants: str) -> str | None:
        """Return the option that would lend a folder; none for what a tool takes to be its home."""
        if self.home is not None and within(Path(path), Path("/tmp", self.home.name)):  # noqa: S108
            return None
        return flag_for(path, wants, homes=self.homes)

    def unseen_flag(self, filename: object) -> str | None:
        """Return the option that would show a file that was not found, where its folder is not to be seen."""
        if not isinstance(filename, str) or not filename.startswith("/"):
            return None
        path = Path(filename)
        if not any(within(path, top) for top in self.unseen) or (self.home and within(path, self.home)):
            return None
        return self.flag(filename, "read")

    def right_flag(self, type_name: str, messages: Sequence[str], line: str) -> str | None:
        """Return the option for the network or variable that an error says was not there.

        Args:
            type_name: The type of the exception.
            messages: Its text, and the texts of those behind it.
            line: The author's line that raised it.
        """
        if self.rights is None:
            return None
        rights = self.rights()
        if not rights.network and any(map(missed_network, messages)):
            return ALLOW_NET
        for message in (message[:_MOST_SEARCHED] for message in messages):
            is_key = type_name == "KeyError" and "environ" in line
            found = _VARIABLE.search(message) if is_key or _LACKS_VARIABLE.search(message) else None
            if found and found[0] not in rights.variables and not found[0].startswith("RUNNER_"):
                return f"{ALLOW_ENV}{found[0]}"
        return None


def judge(
    outcome: Outcome,
    listener: CallListener,
    *,
    home: Path | None,
    limits: Limits,
    unknown: Sequence[str] = (),
    homes: Path = Path("/tmp"),  # noqa: S108
    unseen: Sequence[Path] = (),
    rights: Callable[[], Rights] | None = None,
) -> Mapping[str, Any]:
    """Return the wire result of a call that was answered.

    Args:
        outcome: How the worker ended.
        listener: Who listened to the call; knows its limits and its last progress.
        home: The home of the call, or None if its tool may write nothing.
        limits: The resource limits of the call.
        unknown: File arguments that named no file of the user.
        homes: The folder of homes.
        unseen: Folders that are empty for tools but for what is theirs.
        rights: Returns what the tool may do beyond its home; asked only for an error. Without it no option
            is named that would widen them.

    Raises:
        CallError: The call ended in an error of the contract.
        WireError: The tool's server answered with a JSON-RPC error.
    """
    match outcome.ending:
        case Ending.IDLE_TIMEOUT:
            raise timed_out(listener.deadlines, limit="idle", last_progress=listener.last_progress)
        case Ending.TOTAL_TIMEOUT:
            raise timed_out(listener.deadlines, limit="total", last_progress=listener.last_progress)
        case Ending.OVER_LIMIT | Ending.BROKE_PROTOCOL if outcome.reached is not None:
            raise _over(outcome.reached, limits, outcome.memory_peak_bytes)
        case Ending.BROKE_PROTOCOL:
            raise invalid_result("frame", outcome.fault or "the worker sent something other than a frame")
        case Ending.CRASHED | Ending.OVER_LIMIT:
            raise _crash(outcome, limits)
        case Ending.ANSWERED:
            answer: Mapping[str, Any] = outcome.answer or {}
            raised, result = answer.get("raised"), answer.get("result")
    if isinstance(raised, dict):
        where = _Where(home=home, homes=homes, unseen=unseen, rights=rights)
        error = _error(raised, outcome, where, unknown, limits)
        # What the author says is read first, whatever we know beside it.
        if raised.get("kind") in _SAID and isinstance(result, dict) and _is_authors(result, error):
            error.answer = result
        if not _is_of_the_protocol(answer, raised, error):
            raise _masked(error, raised, result)
    if isinstance(answer.get("error"), dict):
        raise WireError(_written(answer["error"]))
    if not isinstance(result, dict):
        raise invalid_result("result", "the worker's answer holds no result")
    return unfolded(result) if answer.get(FOLDED) is True else result


def _crash(outcome: Outcome, limits: Limits) -> CallError:
    if "MemoryError" in outcome.output[-2000:]:
        return _ran_into("memory_bytes", limits, outcome.memory_peak_bytes)
    return crashed(
        outcome.status,
        cause=outcome.cause,
        memory_peak_bytes=outcome.memory_peak_bytes,
        output=outcome.output[-4000:],
    )


def _over(reached: Reached, limits: Limits, memory_peak_bytes: int | None) -> CallError:
    """Return the error of a limit that the host has seen exceeded."""
    if reached.limit == SERVER_MEMORY:
        return server_memory_full(reached, memory_peak_bytes=memory_peak_bytes)
    # A home that was too full before the call has more room for it; the limit is the setting's.
    value = min(reached.value, getattr(limits, reached.limit))
    return over_limit(replace(reached, value=value), memory_peak_bytes=memory_peak_bytes)


def _ran_into(
    limit: str, limits: Limits, memory_peak_bytes: int | None = None, *, message: str = ""
) -> CallError:
    """Return the error of a limit that the tool exceeded and reported, perhaps with a message."""
    if limit == DISK_FULL:
        return disk_full()
    value = getattr(limits, limit)
    # A write across the limit is done up to it and no further: the file has that size, and was to be larger.
    used = value if limit == _FILE else None
    error = over_limit(Reached(limit=limit, value=value, used=used), memory_peak_bytes=memory_peak_bytes)
    if message:
        # A library says how much it wanted, and for what.
        error.details["message"] = legible(message)
    return error


def _is_of_the_protocol(answer: Mapping[str, Any], raised: Mapping[str, Any], error: CallError) -> bool:
    """Return whether the author's server turned the tool's exception into a JSON-RPC error.

    FastMCP itself answers with a result that is an error; so this is what middleware of the author's wants
    clients to get, such as `ErrorHandlingMiddleware`. Where we know better why it failed, that is told.
    """
    failure = answer.get("error")
    return (
        isinstance(failure, dict)
        and failure.get("code") != 0
        and failure.get("message") not in _OF_THE_SDK
        and raised.get("kind") in _SAID
        and error.code is Code.E_TOOL
    )


def _masked(error: CallError, raised: Mapping[str, Any], result: object) -> CallError:
    """Return an error reduced to the server's own message, if that masks exceptions of tools."""
    message = raised.get("told")
    if not isinstance(message, str) or error.code not in _OF_TOOLS:
        return error
    masked = CallError(
        error.code, legible(message), details={"message": legible(message)}, retryable=error.retryable
    )
    masked.answer = result if isinstance(result, dict) else None
    withheld = {key: value for key, value in error.details.items() if key not in ("message", "suggestion")}
    masked.withheld = {"problem": error.message, **withheld}
    return masked


def _is_authors(result: Mapping[str, Any], error: CallError) -> bool:
    """Return whether an answer has an author's words, not FastMCP's for a known exception."""
    content = result.get("content")
    first = content[0] if isinstance(content, list) and content else None
    text = first.get("text") if isinstance(first, dict) else None
    return error.code is Code.E_TOOL or (isinstance(text, str) and not text.startswith(_WRAPPED))


def _error(
    raised: Mapping[str, Any], outcome: Outcome, where: _Where, unknown: Sequence[str], limits: Limits
) -> CallError:
    if raised.get("kind") == "too long":
        used = raised.get("used")
        reached = Reached(
            limit="frame_bytes", value=limits.frame_bytes, used=used if isinstance(used, int) else None
        )
        return over_limit(reached)
    if raised.get("kind") == "unwritable":
        return invalid_result("result", f"it cannot be written as JSON: {_why_unwritable(raised)}")
    if isinstance(raised.get("denied"), dict):
        return _denied(raised["denied"], outcome.denials, where)
    limit = raised.get("limit")
    if limit in _TOLD:
        message = str(raised.get("message", ""))
        return _ran_into(str(limit), limits, outcome.memory_peak_bytes, message=message)
    return _raised(raised, unknown, where)


def _written(error: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON-RPC error without data that cannot be written again."""
    try:
        return dict(jsonable(error))
    except NotJsonError as reason:
        return {
            "code": error.get("code"),
            "message": f"{error.get('message')} (its data is left out: {reason})",
        }


def _raised(raised: Mapping[str, Any], unknown: Sequence[str], where: _Where) -> CallError:
    kind, type_name = raised.get("kind"), str(raised.get("type"))
    message, filename = str(raised.get("message", "")), raised.get("filename")
    if kind == "arguments":
        return _arguments(raised.get("faults"))
    if kind == "not found":
        return tool_not_found(str(raised.get("tool") or message), [])
    if type_name == "FileNotFoundError" and filename in unknown:
        # Similar names of the user are added by callers with access to the store.
        return file_not_found(str(filename), [])
    if type_name == "FileNotFoundError" and message.startswith(_NO_TEMPORARY) and where.home is None:
        return no_temporary_folder()
    flag = where.unseen_flag(filename) if type_name == "FileNotFoundError" else None
    if flag is None and wants_socket(message):
        flag = ALLOW_SOCKETS
    chain, frames = raised.get("chain"), frame_lines(raised.get("frames"))
    links = [link for link in chain if isinstance(link, Mapping)] if isinstance(chain, list) else []
    if flag is None:
        messages = [message, *(str(link.get("message", "")) for link in links[:_MOST_LINKS])]
        flag = where.right_flag(type_name, messages, frames[-1] if frames else "")
    return tool_raised(
        type_name,
        message,
        frames=frames,
        notes=str(raised.get("notes") or ""),
        chain=[{**link, "frames": frame_lines(link.get("frames"))} for link in links[:_MOST_LINKS]],
        flag=flag,
        relative=_relative(filename) if type_name == "FileNotFoundError" else None,
        is_program=raised.get("is_program") is True,
    )


def _why_unwritable(raised: Mapping[str, Any]) -> str:
    message = str(raised.get("message"))
    # What Python proposes for it, this server could not read.
    is_long = "integer string conversion" in message
    return "an integer of more than 4,300 digits; return it as a string" if is_long else legible(message)


def _relative(filename: object) -> str | None:
    return filename if isinstance(filename, str) and filename and not filename.startswith("/") else None


def _denied(denied: Mapping[str, Any], denials: Sequence[Denial], where: _Where) -> CallError:
    """Return the error of a denial that ended a call: of a path, a program, or a place on the network."""
    operation, path = str(denied.get("operation", "")), str(denied.get("path", ""))
    if operation == "run":
        return program_denied(path)
    if _OF_PROCESSES.match(path):
        return own_files_denied(path)
    if not operation.startswith("socket."):
        return outside_home(path, where.home, flag=where.flag(path, str(denied.get("wants", ""))))
    if path.startswith("AF_"):
        own = path.startswith(("AF_UNIX SOCK_STREAM", "AF_UNIX SOCK_SEQPACKET"))
        return socket_denied(path, flag=ALLOW_SOCKETS if own else None)
    # The kernel denies the socket, before any address is named; the guard, or the gate, has heard it.
    paths = [item.path for item in denials if item.operation.startswith(("socket.", "connect")) and item.path]
    return network_denied(*_place(path or (paths[-1] if paths else "")))


def _place(text: str) -> tuple[str | None, int | None]:
    """Return host and port of a place as it is written."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not host.startswith("[")):
        host, port = text, ""
    return host.strip("[]") or None, int(port[:6]) if port else None


def _arguments(faults: object) -> CallError:
    reported = faults[:_MOST_FAULTS] if isinstance(faults, list) else []
    listed = [fault for fault in reported if isinstance(fault, Mapping)]
    sentences = [f"{fault.get('argument') or 'arguments'}: {fault.get('problem')}" for fault in listed]
    first = str(listed[0].get("argument")) if len(listed) == 1 else None
    return invalid_argument("; ".join(sentences) or "The arguments do not fit the tool", argument=first)
