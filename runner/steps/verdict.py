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
    listening_denied,
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
from sandbox.denials.network import BIND
from sandbox.denials.paths_in_errors import wants_socket
from sandbox.host.memory_guard import SERVER_MEMORY
from sandbox.outcome import Denial, Ending, Outcome, Reached
from sandbox.policy import Limits

__all__ = ["denial_facts", "judge", "plain_denial"]

# Folders of processes in /proc.
_OF_PROCESSES = re.compile(r"/proc/(?:self|thread-self|[0-9]+)(?:/|$)")
# Error of `tempfile` once it has tried all its folders. Source: CPython, Lib/tempfile.py.
_NO_TEMPORARY = "[Errno 2] No usable temporary directory found in "
# Kinds of exceptions that a tool raised itself, whose messages are its author's.
_SAID = ("tool error", "raised")
# Messages of the SDK for an exception that nothing has converted; in sessions it uses code 0 as well.
_OF_THE_SDK = ("Internal server error", "Invalid request parameters")
# Errors with text of a tool or its author.
_OF_TOOLS = (Code.E_TOOL, Code.E_INVALID_PATH, Code.E_NETWORK_DENIED)
_WRAPPED = "Error calling tool "
# The limit that a worker may report; the host measures the others itself.
_FILE = "file_bytes"
# A worker may report any number.
_MOST_FAULTS = 20
_MOST_LINKS = 20
# An environment variable, as named in messages about a missing one.
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9]{0,60}(?:_[A-Z0-9]{1,60}){1,10}(?![A-Za-z0-9_])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_LACKS_VARIABLE = re.compile(r"\b(?:environment|env|variable)\b", re.I)
_MOST_SEARCHED = 4000
# Operations of denials whose path is not one of a file.
_NOT_OF_FILES = ("run", "connect", "lookup")
_TOLD = ("memory_bytes", "open_files", _FILE, "processes", DISK_FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Visibility of homes and of other users' folders for a call.

    Attributes:
        home: The home of the call, or None.
        homes: The folder of homes.
        unseen: Folders in which tools see only their own entries.
        rights: Returns the rights of the tool beyond its home, if they are known.
    """

    home: Path | None
    homes: Path
    unseen: Sequence[Path]
    rights: Callable[[], Rights] | None

    def flag(self, path: str, wants: str) -> str | None:
        """Return the option that would grant a folder; None for a path that a tool takes for its home."""
        if self.home is not None and within(Path(path), Path("/tmp", self.home.name)):  # noqa: S108
            return None
        return flag_for(path, wants, homes=self.homes)

    def unseen_flag(self, filename: object) -> str | None:
        """Return the option that would reveal a file that was not found, if its folder is hidden."""
        if not isinstance(filename, str) or not filename.startswith("/"):
            return None
        path = Path(filename)
        if not any(within(path, top) for top in self.unseen) or (self.home and within(path, self.home)):
            return None
        return self.flag(filename, "read")

    def right_flag(
        self, type_name: str, messages: Sequence[str], line: str, *, lacks: object = None
    ) -> str | None:
        """Return the option for the network or the variable whose absence an error reports.

        Args:
            type_name: The type of the exception.
            messages: Its text, and the texts of its causes.
            line: The author's line that raised it.
            lacks: The variable of its text that the tool file reads and does not find, as the worker reports.
        """
        if self.rights is None:
            return None
        rights = self.rights()
        if not rights.network and any(map(missed_network, messages)):
            return ALLOW_NET
        names = [lacks] if isinstance(lacks, str) and _NAME.fullmatch(lacks) else []
        for message in (message[:_MOST_SEARCHED] for message in messages):
            is_key = type_name == "KeyError" and "environ" in line
            found = _VARIABLE.search(message) if is_key or _LACKS_VARIABLE.search(message) else None
            names += [found[0]] if found else []
        hidden = (n for n in names if n not in rights.variables and not n.startswith("RUNNER_"))
        return next((f"{ALLOW_ENV}{name}" for name in hidden), None)


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
        listener: Listener of the call, with its limits and its last progress.
        home: The home of the call, or None if its tool may write nothing.
        limits: The resource limits of the call.
        unknown: File arguments that named no file of the user.
        homes: The folder of homes.
        unseen: Folders in which tools see only their own entries.
        rights: Returns the rights of the tool beyond its home; called only for an error. Without it, no
            option that would widen them is named.

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
        # The author's message comes first, regardless of our own facts.
        if raised.get("kind") in _SAID and isinstance(result, dict) and _is_authors(result, error):
            error.answer = result
        if not _is_of_the_protocol(answer, raised, error):
            raise _masked(error, raised, result)
    if isinstance(answer.get("error"), dict):
        raise WireError(_written(answer["error"]))
    if not isinstance(result, dict):
        raise invalid_result("result", "the worker's answer holds no result")
    return unfolded(result) if answer.get(FOLDED) is True else result


def denial_facts(denial: Denial, homes: Path) -> dict[str, str]:
    """Return a denial for results and reports, with the option that would allow it, if there is one.

    Args:
        denial: The denial.
        homes: The folder of homes.
    """
    facts = plain_denial(denial)
    is_of_files = denial.operation not in _NOT_OF_FILES and not denial.operation.startswith("socket.")
    flag = flag_for(denial.path, denial.wants, homes=homes) if is_of_files else None
    return facts if flag is None else {**facts, "flag": flag}


def plain_denial(denial: Denial) -> dict[str, str]:
    """Return the operation, path and layer of a denial."""
    return {"operation": denial.operation, "path": denial.path, "layer": denial.layer}


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
    # If the home was over its limit before the call, the call had a higher one; the setting's is reported.
    value = min(reached.value, getattr(limits, reached.limit))
    return over_limit(replace(reached, value=value), memory_peak_bytes=memory_peak_bytes)


def _ran_into(
    limit: str, limits: Limits, memory_peak_bytes: int | None = None, *, message: str = ""
) -> CallError:
    """Return the error of a limit that the tool exceeded and reported, perhaps with a message."""
    if limit == DISK_FULL:
        return disk_full()
    value = getattr(limits, limit)
    # A write across the limit is truncated at it: the file has that size, and was meant to be larger.
    used = value if limit == _FILE else None
    error = over_limit(Reached(limit=limit, value=value, used=used), memory_peak_bytes=memory_peak_bytes)
    if message:
        # The message of a library names the amount and its purpose.
        error.details["message"] = legible(message)
    return error


def _is_of_the_protocol(answer: Mapping[str, Any], raised: Mapping[str, Any], error: CallError) -> bool:
    """Return whether the author's server turned the tool's exception into a JSON-RPC error.

    FastMCP itself answers with an error result. So a JSON-RPC error is from the author's middleware, such as
    `ErrorHandlingMiddleware`, and meant for clients. A more specific error of ours takes precedence.
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
    """Return whether an answer has the author's text, not FastMCP's text for a known exception."""
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
    """Return a JSON-RPC error without data that cannot be encoded again."""
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
        return tool_not_found(str(raised.get("tool") or message), None)
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
        line, lacks = frames[-1] if frames else "", raised.get("lacks")
        flag = where.right_flag(type_name, messages, line, lacks=lacks)
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
    # Python suggests a higher limit, but this server could not read the number.
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
    # The kernel denies the socket before an address is known; the guard or the gate has recorded it.
    known = [item for item in denials if item.operation.startswith(("socket.", "connect")) and item.path]
    if known and not path and operation != BIND:
        operation, path = known[-1].operation, known[-1].path
    # The address of a UNIX socket is a path.
    denied_address = listening_denied if operation == BIND and path[:1] != "/" else network_denied
    return denied_address(*_place(path))


def _place(text: str) -> tuple[str | None, int | None]:
    """Return the host and port in the text of a network address."""
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
