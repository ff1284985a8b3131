"""Error envelopes and notices: the exact words of the contract, one constructor for each way to fail.

Every constructor returns a `CallError`; `envelope` turns one into the JSON that callers get. Messages for
exceeded resource limits are in `runner.contract.limit_errors`.

Source: document 001, sections 11.3 and 12; the table of error codes in `docs/cli.md`; requirements S1-122,
S1-125 to S1-137 and S2-25.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

from runner.errors import CallError, Code
from runner.formats.bounded_text import cut, cut_middle
from runner.formats.nearest import nearest
from sandbox.deadlines import LAST_NOTICE_BEFORE_END_S, Deadlines, Rung
from sandbox.network.destinations import written

__all__ = [
    "ALLOW_ENV",
    "ALLOW_NET",
    "ALLOW_SOCKETS",
    "RefusedFile",
    "approval_busy",
    "approval_needed",
    "approval_refused",
    "approval_store_failed",
    "artifact_missing",
    "busy",
    "cancelled",
    "crashed",
    "empty_file",
    "envelope",
    "file_not_found",
    "internal_error",
    "invalid_argument",
    "invalid_result",
    "legible",
    "listening_denied",
    "lost",
    "network_denied",
    "no_process",
    "no_temporary_folder",
    "not_for_code",
    "not_for_widgets",
    "notice",
    "out_of_descriptors",
    "outside_home",
    "over_rate",
    "program_denied",
    "socket_denied",
    "stopped",
    "stopping",
    "timed_out",
    "too_large",
    "tool_not_found",
    "tool_raised",
    "unauthorized",
    "unusable_file",
    "with_refusals",
]

ALLOW_ENV = "--allow-env="
ALLOW_NET = "--allow-net"
ALLOW_SOCKETS = "--allow-sockets"
"""The option that lets tools have UNIX sockets in their home."""

TEXT_MAX_CHARS = 4096
PATH_MAX_CHARS = 255
_MOST_LISTED = 50
_NO_PROCESS_S = 5
_USUAL_HOMES = Path("/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFile:
    """One file of a result that could not be accepted.

    Attributes:
        name: The name the tool gave it, or None.
        reason: One word of the contract, for example `invalid_path`.
        error: The error that a call with only this file would have.
    """

    name: str | None
    reason: str
    error: CallError

    def entry(self) -> dict[str, Any]:
        """Return the item of `meta_data.artifact_errors`."""
        return {"name": self.name, "reason": self.reason, "error": envelope(self.error)}


def envelope(error: CallError) -> dict[str, Any]:
    """Return the result that stands for `error`."""
    meta_data: dict[str, Any] = {
        "is_error": True,
        "reason": error.code.reason,
        "error_code": error.code.name,
    }
    if error.details:
        meta_data["details"] = dict(error.details)
    meta_data["retryable"] = error.retryable
    return {"results": {"error": error.message}, "retryable": error.retryable, "meta_data": meta_data}


def _error(code: Code, message: str, suggestion: str, **details: object) -> CallError:
    return CallError(code, message, details={**details, "suggestion": suggestion})


def _invalid_path(message: str, attempted: str, suggestion: str, **details: object) -> CallError:
    """Return the error of a path, with the same keys for every reason."""
    named = {"attempted_path": attempted, "allowed_prefix": None, **details}
    return _error(Code.E_INVALID_PATH, message, suggestion, **named)


def notice(rung: Rung, deadlines: Deadlines) -> str:
    """Return the notice to the user when silence has reached `rung`."""
    match rung:
        case Rung.FIRST_NOTICE:
            return "The tool is taking longer than expected. Please wait..."
        case Rung.SECOND_NOTICE:
            return "Still processing your request. This may take a few more moments."
        case Rung.LAST_NOTICE:
            left = _whole(min(LAST_NOTICE_BEFORE_END_S, deadlines.idle_s))
            return f"Processing continues. The tool will timeout in {left} seconds if no progress."
        case Rung.IDLE_END | Rung.TOTAL_END:
            return (
                "Tool failed to respond in a reasonable amount of time. "
                "Please try again or use a smaller dataset."
            )
        case _:
            assert_never(rung)


def timed_out(
    deadlines: Deadlines, *, limit: Literal["idle", "total"], last_progress: str | None
) -> CallError:
    """Return the error of a call that reached one of its two time limits."""
    seconds = _whole(deadlines.idle_s if limit == "idle" else deadlines.total_s)
    return _error(
        Code.E_TIMEOUT,
        f"Tool execution timed out after {seconds} seconds",
        "Consider breaking large operations into smaller chunks or using progress reporting",
        timeout_seconds=seconds,
        last_progress=None if last_progress is None else legible(last_progress),
        **({"limit": "total"} if limit == "total" else {}),
    )


def outside_home(
    attempted: str, home: Path | None, *, problem: str | None = None, flag: str | None = None
) -> CallError:
    """Return the error of a path that the call may not use.

    The tool's own access to that path raises an error of `sandbox.denials.judge`, with a similar message.

    Args:
        attempted: The path as the tool named it.
        home: The home of the call, or None if the tool has none.
        problem: Why the path was refused, if not because it is outside.
        flag: The option that would allow it, if one would.
    """
    suggestion = "Use /tmp/{username}/ prefix for file operations"
    if home is None:
        suggestion += (
            "; the tool has no such folder until it declares a parameter `username: str`, "
            'or the setting homes_for is "all"'
        )
    elif home.parent != _USUAL_HOMES:
        suggestion = f"Use {home}/ prefix for file operations: homes are in {home.parent} here"
    details: dict[str, Any] = {"allowed_prefix": None if home is None else f"{home}/"}
    if problem is not None:
        details["problem"] = problem
    if flag is not None:
        details["flag"] = legible(flag, PATH_MAX_CHARS)
        suggestion += f". For the operator: {details['flag']} would lend that folder"
    message = "File operation outside allowed directory"
    return _invalid_path(message, _short_path(attempted), suggestion, **details)


def unusable_file(named: str, problem: str, advice: str) -> CallError:
    """Return the error of a path in the folder of a call that is not a regular file.

    Args:
        named: The path as the tool named it.
        problem: Its actual type.
        advice: Remedy for the tool.
    """
    path = _short_path(named)
    message = f"{path} cannot be handed on: {problem}"
    return _error(Code.E_INVALID_PATH, message, advice, attempted_path=path, problem=problem)


def empty_file(named: str, mime: str) -> CallError:
    """Return the error of a file without bytes whose format cannot be empty."""
    problem = f"it has 0 bytes, and no file of type {legible(mime)} is empty"
    advice = "Save or close the file before its path is returned: a writer may still hold its content"
    path = _short_path(named)
    message = f"{path} is not finished: {problem}"
    details = {"attempted_path": path, "size": 0, "problem": problem, "refused_for": "missing_content"}
    return _error(Code.E_INVALID_RESULT, message, advice, **details)


def no_temporary_folder() -> CallError:
    """Return the error of a tool without a home that asked for a temporary file or folder."""
    return _invalid_path(
        "This tool has no folder for temporary files",
        str(_USUAL_HOMES),
        "It has one once it declares a parameter `username: str`. For the operator: with "
        'the setting homes_for = "all" (RUNNER_HOMES_FOR=all) every tool has one',
    )


def own_files_denied(attempted: str) -> CallError:
    """Return the error of a process that may not read its own entries in `/proc`, or those of another.

    Args:
        attempted: The path as the tool named it.
    """
    return _invalid_path(
        "A tool cannot read entries of processes in /proc",
        _short_path(attempted),
        "Do without it: resource.getrusage and os.sched_getaffinity answer the usual questions. For the "
        'operator: with worker_start = "load", or in tier namespace, a worker may read its own files there; '
        "those of other processes are closed to every tool",
    )


def too_large(size: int | None, limit: int) -> CallError:
    """Return the error of a file above the hard cap.

    Args:
        size: Its length in bytes; None if the limit stopped the writing.
        limit: The cap in bytes.
    """
    return _error(
        Code.E_FILE_TOO_LARGE,
        "Generated file exceeds processing limits",
        "Consider generating summary or using chunked processing",
        file_size_bytes=size,
        current_limit_bytes=limit,
    )


def artifact_missing(path: str) -> CallError:
    """Return the error of an artifact whose file does not exist."""
    shown = _short_path(path)
    return _error(
        Code.E_INVALID_RESULT,
        f"The tool named the file {shown!r} in its result, but there is no such file",
        "Write and close the file before returning its path"
        + (": `~` in it is not expanded, use Path.expanduser" if path.startswith("~") else ""),
        where="artifacts",
        attempted_path=shown,
    )


def not_whole(path: str, problem: str, cure: str) -> CallError:
    """Return the error of a database that is incomplete without the log beside it."""
    shown = _short_path(path)
    return _error(
        Code.E_INVALID_RESULT,
        f"The database {shown!r} is not whole: {problem}",
        f"{cure}, or close the connection, before the tool returns",
        where="artifacts",
        attempted_path=shown,
        refused_for="not_whole",
    )


def tool_raised(
    exception_type: str,
    message: str,
    *,
    frames: Sequence[str] = (),
    notes: str = "",
    chain: Sequence[Mapping[str, Any]] = (),
    retryable: bool = False,
    flag: str | None = None,
    relative: str | None = None,
    is_program: bool = False,
) -> CallError:
    """Return the error of a tool that raised.

    Args:
        exception_type: Name of the exception's class.
        message: Its text; may be empty.
        frames: The author's own frames, outermost first, already as text.
        notes: Its notes, a line each.
        chain: Its causes, contexts and members of a group. Each has its relation, type, message, notes and
            frames.
        retryable: Whether the tool considers a retry useful.
        flag: The option that would reveal a missing file in a hidden folder, or would allow the socket, the
            network or the variable that it lacked.
        relative: The relative path of a file that it did not find, if it was relative.
        is_program: Whether that is the name of a program.
    """
    kind, text = legible(exception_type), legible(message)
    details: dict[str, Any] = {"exception_type": kind, "message": text, **_beside(notes, frames)}
    if chain:
        details["chain"] = [
            {
                "relation": legible(str(link.get("relation"))),
                "exception_type": legible(str(link.get("type"))),
                "message": legible(str(link.get("message", ""))),
                **_beside(str(link.get("notes", "")), link.get("frames", ())),
            }
            for link in chain
        ]
    if flag is not None:
        details["flag"] = legible(flag, PATH_MAX_CHARS)
        details["suggestion"] = _advice_of(details["flag"])
    elif relative is not None and is_program:
        details["suggestion"] = (
            f"The tool's PATH has no program {legible(relative, PATH_MAX_CHARS)!r}. For the operator: "
            "install it for all users, as in /usr/local/bin; --allow-read=FOLDER lends another folder"
        )
    elif relative is not None:
        details["suggestion"] = (
            "A relative path leads from the tool's own working folder, not from that of the server. "
            f"For a file beside the tool's: Path(__file__).parent / {legible(relative, PATH_MAX_CHARS)!r}"
        )
    return CallError(Code.E_TOOL, text or f"The tool raised {kind}", details=details, retryable=retryable)


def _beside(notes: str, frames: Sequence[str]) -> dict[str, Any]:
    """Return the details of an exception besides its type and message, if any."""
    extra = {"notes": [*map(legible, notes.splitlines())], "frames": [*map(legible, frames)]}
    return {name: value for name, value in extra.items() if value}


def _advice_of(flag: str) -> str:
    if flag == ALLOW_SOCKETS:
        return (
            "Tools may have no UNIX socket, which it needs. For the operator: "
            f"{flag} would allow those in its home, in tier `namespace`"
        )
    if flag == ALLOW_NET:
        return f"This tool has no network. For the operator: {flag}=HOST would allow connections to a host"
    if flag.startswith(ALLOW_ENV):
        return f"Tools see few variables of the environment. For the operator: {flag} would show this one"
    return f"Tools see nothing of that folder, whatever lies in it. For the operator: {flag} would lend it"


def crashed(
    status: str | None,
    *,
    cause: str | None = None,
    memory_peak_bytes: int | None = None,
    output: str = "",
) -> CallError:
    """Return the error of a worker that died.

    Args:
        status: The wait status in words, if known.
        cause: Why it ended, if not by a fault of the tool.
        memory_peak_bytes: Its memory peak, if known.
        output: Tail of its standard output and error.
    """
    details: dict[str, Any] = {"status": status or "unknown"}
    if memory_peak_bytes is not None:
        details["memory_peak_bytes"] = memory_peak_bytes
    if output:
        details["output"] = legible(output)
    if cause is not None:
        details["suggestion"] = "Call again, but check first: the call may already have taken effect"
        return CallError(Code.E_CRASHED, f"The call was ended while it ran: {cause}", details=details)
    details["suggestion"] = "Look at the tool's own output; native code that fails ends the whole process"
    return CallError(
        Code.E_CRASHED,
        f"The tool's process ended before it answered ({status or 'for an unknown reason'})",
        details=details,
    )


def lost(problem: str) -> CallError:
    """Return the error of a call whose workers exited before it started, at each attempt."""
    suggestion = "Call again in a moment; nothing of it has been done"
    return _error(Code.E_CRASHED, f"The call could not begin: {problem}", suggestion, problem=problem)


def _busy(sentence: str, retry_after_s: float, suggestion: str, **facts: object) -> CallError:
    seconds = _whole(retry_after_s)
    message = f"{sentence}; try again in {seconds} seconds"
    return _error(Code.E_BUSY, message, suggestion, retry_after_seconds=seconds, **facts)


def stopping(retry_after_s: int) -> CallError:
    """Return the error of a call that arrived while the server was being stopped."""
    return _busy(
        "The server is being stopped and takes no new calls",
        retry_after_s,
        "Try again: another server, or the next start of this one, will take the call",
    )


def stopped() -> CallError:
    """Return the error of a call that was ended with its server."""
    return _error(
        Code.E_CANCELLED,
        "The server was stopped before the tool had answered",
        "Call again once the server is back. For the operator: drain_s says how long calls may go on when "
        "the server is stopped",
    )


def no_process(problem: str) -> CallError:
    """Return the error of a call for which no process could be started."""
    return _busy(
        f"The call could not begin: {problem}",
        _NO_PROCESS_S,
        "Try again; or raise the server's process and memory limits: "
        "user_processes, and the limits of its container or service (--pids-limit, TasksMax, --memory)",
        problem=problem,
    )


def tool_not_found(name: str, names: Sequence[str] | None) -> CallError:
    """Return the error of a call to a tool that does not exist. `names` are those that do, if known."""
    alike = nearest(name, names or (), least=0.5)
    if names is None:
        hint = "Request the list of tools again; it may have changed"
    elif alike:
        hint = f"Did you mean {_listed(alike)}?"
    else:
        hint = f"The tools are {_listed(names)}" if names else "The server has no tools"
    message = f"There is no tool named {legible(name)!r}"
    return _error(Code.E_TOOL_NOT_FOUND, message, hint, name=legible(name), nearest=alike)


def invalid_argument(message: str, *, argument: str | None = None) -> CallError:
    """Return the error of arguments that fail the tool's schema."""
    details = {} if argument is None else {"argument": legible(argument)}
    return CallError(Code.E_INVALID_ARGUMENT, legible(message), details=details)


def file_not_found(name: str, alike: Sequence[str]) -> CallError:
    """Return the error of a call that failed for lack of a file the user does not have."""
    hint = f"Did you mean {_listed(alike)}?" if alike else "Put the file into My Files first"
    message = f"There is no file named {legible(name)!r} among the user's files"
    return _error(Code.E_FILE_NOT_FOUND, message, hint, name=legible(name), nearest=list(alike))


def invalid_result(
    where: str, problem: str, suggestion: str = "Return one JSON object with `results`, see the contract"
) -> CallError:
    """Return the error of a result, or a part of one, that breaks the contract."""
    message = f"The tool's result breaks the contract: {problem}"
    return _error(Code.E_INVALID_RESULT, message, suggestion, where=where)


def internal_error(call: str) -> CallError:
    """Return the error of a call that failed for a fault of the runner. `call` is its id in the log."""
    return _error(
        Code.E_INTERNAL,
        f"The server failed while it handled the call {call}; neither the tool nor the call is to blame",
        "Try again. If it fails again, tell the operator this id: the log has the cause",
        call=call,
    )


def network_denied(host: str | None, port: int | None) -> CallError:
    """Return the error of a tool that tried a forbidden connection. Host and port may be unknown."""
    where = None if host is None else legible(written(host, port), PATH_MAX_CHARS)
    flag = "--allow-net" if where is None else f"--allow-net={where}"
    return _network_error(
        f"The tool tried to reach {where or 'the network'}, which is not allowed",
        f"Start the runner with {flag}, or give the tool its data as a file",
        host=host,
        port=port,
        flag=flag,
    )


def socket_denied(kind: str, *, flag: str | None = None) -> CallError:
    """Return the error of a tool that tried to create a forbidden kind of socket.

    Args:
        kind: Family, type and protocol, as the kernel names them.
        flag: The option that would have allowed it; None if no option does.
    """
    may = "which is never allowed" if flag is None else "which is not allowed"
    suggestion = "Use TCP connections; names are looked up by the host, without UDP"
    if flag is not None:
        suggestion = (
            f"Start the runner with {flag}: processes of the tool then reach each other by sockets in its "
            "home, and nobody else (tier `namespace`)"
        )
    message = f"The tool tried to make a socket of another kind than TCP ({legible(kind)}), {may}"
    return _network_error(message, suggestion, flag=flag)


def listening_denied(host: str | None, port: int | None) -> CallError:
    """Return the error of a tool that tried to listen on a TCP port. Host and port may be unknown."""
    where = "a port" if host is None else legible(written(host, port), PATH_MAX_CHARS)
    return _network_error(
        f"The tool tried to listen on {where}, which is never allowed",
        "Do without a server: tools can only connect. For a login, use one without a redirect, such as a "
        "device code; between the tool's own processes, use a pipe",
        host=host,
        port=port,
    )


def _network_error(
    message: str,
    suggestion: str,
    *,
    host: str | None = None,
    port: int | None = None,
    flag: str | None = None,
) -> CallError:
    shown = None if host is None else legible(host)
    return _error(Code.E_NETWORK_DENIED, message, suggestion, host=shown, port=port, flag=flag)


def program_denied(program: str) -> CallError:
    """Return the error of a tool that tried to run a program that it may not run."""
    shown = _short_path(program)
    message, flag = f"The tool tried to run {shown}, which is not allowed", f"--allow-run={shown}"
    suggestion = f"Start the runner with {flag} and without --deny-run"
    return _invalid_path(message, shown, suggestion, problem="program", flag=flag)


def cancelled() -> CallError:
    """Return the error of a call that its client cancelled."""
    return CallError(Code.E_CANCELLED, "The call was cancelled before the tool answered")


def busy(retry_after_s: float, *, value: int) -> CallError:
    """Return the error of a call that was not admitted.

    Args:
        retry_after_s: When to retry, in seconds.
        value: Number of calls that may wait.
    """
    return _busy(
        f"{value} calls are waiting already",
        retry_after_s,
        "Make fewer calls at a time, or raise max_calls",
        **_limit("waiting calls", value, setting="max_calls"),
    )


def out_of_descriptors(retry_after_s: float, *, limit: int) -> CallError:
    """Return the error of a call for whose workers the host has no file descriptors left.

    Args:
        retry_after_s: When to retry, in seconds.
        limit: How many the host may have open.
    """
    return _busy(
        "The server has too few file descriptors left for one more user",
        retry_after_s,
        "Start the server with a higher hard limit of open files: ulimit -Hn, or LimitNOFILE= of its systemd "
        "unit",
        **_limit("file descriptors", limit, setting="ulimit -Hn"),
    )


def over_rate(setting: str, most: int, retry_after_s: float, *, of_user: bool) -> CallError:
    """Return the error of a call above a rate limit of the operator.

    Args:
        setting: The limit, by its name in the settings.
        most: Number of calls that it allows.
        retry_after_s: When to retry, in seconds.
        of_user: Whether it counts only calls of this user.
    """
    whose = "this user" if of_user else "all users together"
    return _busy(
        f"Rate limit reached: {most} calls a minute for {whose} ({setting})",
        max(1, math.ceil(retry_after_s)),
        f"Call less often, or raise {setting}",
        **_limit(setting, most, setting=setting) | {"unit": "calls"},
    )


def _limit(name: str, value: int, *, setting: str) -> dict[str, object]:
    return {"limit": name, "value": value, "unit": name, "setting": setting}


def unauthorized(tool: str, *, scopes: Sequence[str], has_token: bool) -> CallError:
    """Return the error of a call whose tool needs a user who has logged in, or more rights of the user.

    Args:
        tool: Name of the tool.
        scopes: The scopes that a token needs.
        has_token: Whether the request had a token at all.
    """
    needed = f" with the scopes {', '.join(scopes)}" if scopes else ""
    problem = "insufficient_scope" if has_token else "invalid_token"
    message = f"{legible(tool)} needs a user who has logged in{needed}"
    suggestion = "Log in, and call it again"
    return _error(Code.E_UNAUTHORIZED, message, suggestion, problem=problem, scopes=[*scopes])


def approval_needed(tool: str, *, rule: str, name: str, expires_s: float) -> CallError:
    """Return the error of a call that waits for the operator.

    Args:
        tool: Name of the tool.
        rule: Name of the rule that holds it.
        name: Id of the request.
        expires_s: Lifetime of the request, in seconds.
    """
    command = f"runner approve {name}"
    return _error(
        Code.E_APPROVAL,
        f"{legible(tool)} was not run: the rule approvals.{rule} holds this call until a person approves it",
        f"Ask the operator to run `{command}`, then make the identical call again; other arguments need "
        "another approval",
        rule=rule,
        approval=name,
        command=command,
        expires_in_seconds=_whole(expires_s),
    )


def approval_refused(tool: str, *, rule: str, why: str) -> CallError:
    """Return the error of a call that a person did not approve.

    Args:
        tool: Name of the tool.
        rule: Name of the rule that held it.
        why: The answer, as a clause.
    """
    message = f"{legible(tool)} was not run: {why} (rule approvals.{rule})"
    suggestion = "Do not repeat the call; ask the person what to do instead"
    return _error(Code.E_APPROVAL, message, suggestion, rule=rule)


def approval_busy(most: int) -> CallError:
    """Return the error of a call that cannot wait for an approval, since too many do.

    Args:
        most: Number of calls of one user that may wait.
    """
    return _error(
        Code.E_BUSY,
        f"The call was not run: too many calls already wait for an approval, at most {most} of one user",
        "Wait until they are answered; `runner approve` lists those of the operator",
        limit="waiting approvals",
        value=most,
    )


def approval_store_failed(state: Path, problem: str) -> CallError:
    """Return the error of a call whose approval can be neither recorded nor used.

    Args:
        state: The state folder.
        problem: Why, as a clause.
    """
    return _error(
        Code.E_STORE,
        f"The call was not run: it needs an approval, and {state / 'approvals'} cannot be used: {problem}",
        "For the operator: make room or restore the folder, owned by the server, mode 0700",
    )


def not_for_code(tool: str) -> CallError:
    """Return the error of a call by code of a tool that is not for models, or that no server lists."""
    return _error(
        Code.E_INVALID_ARGUMENT,
        f"{legible(tool)} may not be called by code: its _meta.ui.visibility does not name `model`, or its "
        "server does not list it",
        "Name a tool that search finds",
    )


def not_for_widgets(tool: str, *, may_call: bool) -> CallError:
    """Return the error of a forbidden call by a widget.

    Args:
        tool: Name of the tool.
        may_call: Whether widgets may call it with a person's consent.
    """
    if may_call:
        reason = "may destroy something, so a widget may call it only after a person said yes"
        suggestion = "Annotate the tool with readOnlyHint or destructiveHint=false if it does not"
    else:
        reason = "may not be called by a widget: its _meta.ui.visibility does not name `app`"
        suggestion = "Name it there if widgets are to call it, as Widget(accessible=True) does"
    return _error(Code.E_INVALID_ARGUMENT, f"{legible(tool)} {reason}", suggestion)


def legible(text: str, limit: int = TEXT_MAX_CHARS) -> str:
    """Return `text` in a form that JSON in UTF-8 can represent, cut to `limit` characters."""
    return cut(text, limit).encode("utf-8", "replace").decode("utf-8")


def _short_path(path: str) -> str:
    """Return a path in full if its length is usual, else its beginning and its end."""
    return legible(cut_middle(path, PATH_MAX_CHARS))


def with_refusals(meta_data: Mapping[str, Any], refusals: Sequence[RefusedFile]) -> dict[str, Any]:
    """Return `meta_data` with `refusals` added to its `artifact_errors`."""
    if not refusals:
        return dict(meta_data)
    before = meta_data.get("artifact_errors")
    listed = before if isinstance(before, list) else []
    return {**meta_data, "artifact_errors": [*listed, *(refusal.entry() for refusal in refusals)]}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(repr(legible(name, PATH_MAX_CHARS)) for name in names[:_MOST_LISTED]) + more


def _whole(seconds: float) -> int | float:
    return int(seconds) if seconds == int(seconds) else seconds
