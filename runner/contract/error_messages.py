"""Error envelopes and notices: the exact words of the contract, one constructor for each way to fail.

Every constructor returns a `CallError`; `envelope` turns one into the JSON that callers get. What is said
where a call has reached a limit of its resources stands in `runner.contract.limit_errors`.

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
        error: The error the file alone would have been.
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
    details: dict[str, Any] = {
        "timeout_seconds": seconds,
        "last_progress": None if last_progress is None else legible(last_progress),
        "suggestion": ("Consider breaking large operations into smaller chunks or using progress reporting"),
    }
    if limit == "total":
        details["limit"] = "total"
    return CallError(Code.E_TIMEOUT, f"Tool execution timed out after {seconds} seconds", details=details)


def outside_home(
    attempted: str, home: Path | None, *, problem: str | None = None, flag: str | None = None
) -> CallError:
    """Return the error of a path that the call may not use.

    What the tool itself meets at that place is raised, in words that begin alike, by `sandbox.denials.judge`.

    Args:
        attempted: The path as the tool named it.
        home: The home of the call, or None if the tool has none.
        problem: Why the path was refused, where "outside" does not say it.
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
    details: dict[str, Any] = {
        "attempted_path": _short_path(attempted),
        "allowed_prefix": None if home is None else f"{home}/",
        "suggestion": suggestion,
    }
    if problem is not None:
        details["problem"] = problem
    if flag is not None:
        details["flag"] = legible(flag, PATH_MAX_CHARS)
        details["suggestion"] += f". For the operator: {details['flag']} would lend that folder"
    return CallError(Code.E_INVALID_PATH, "File operation outside allowed directory", details=details)


def unusable_file(named: str, problem: str, advice: str) -> CallError:
    """Return the error of what lies in the folder of a call and is not a file to hand on.

    Args:
        named: The path as the tool named it.
        problem: What it is instead.
        advice: What the tool can do.
    """
    path = _short_path(named)
    details = {"attempted_path": path, "problem": problem, "suggestion": advice}
    return CallError(Code.E_INVALID_PATH, f"{path} cannot be handed on: {problem}", details=details)


def empty_file(named: str, mime: str) -> CallError:
    """Return the error of a file without bytes whose format cannot be empty."""
    problem = f"it has 0 bytes, and no file of type {legible(mime)} is empty"
    advice = "Save or close the file before its path is returned: a writer may still hold its content"
    path = _short_path(named)
    details = {
        "attempted_path": path,
        "size": 0,
        "problem": problem,
        "suggestion": advice,
        "refused_for": "missing_content",
    }
    return CallError(Code.E_INVALID_RESULT, f"{path} is not finished: {problem}", details=details)


def no_temporary_folder() -> CallError:
    """Return the error of a tool without a home that asked for a temporary file or folder."""
    return CallError(
        Code.E_INVALID_PATH,
        "This tool has no folder for temporary files",
        details={
            "attempted_path": str(_USUAL_HOMES),
            "allowed_prefix": None,
            "suggestion": "It has one once it declares a parameter `username: str`. For the operator: with "
            'the setting homes_for = "all" (RUNNER_HOMES_FOR=all) every tool has one',
        },
    )


def own_files_denied(attempted: str) -> CallError:
    """Return the error of a process that may not read what `/proc` has of it, or of another one.

    Args:
        attempted: The path as the tool named it.
    """
    return CallError(
        Code.E_INVALID_PATH,
        "A tool cannot read entries of processes in /proc",
        details={
            "attempted_path": _short_path(attempted),
            "allowed_prefix": None,
            "suggestion": "Do without it: resource.getrusage and os.sched_getaffinity answer the usual "
            'questions. For the operator: with worker_start = "load", or in tier namespace, a worker may '
            "read its own files there; those of other processes are closed to every tool",
        },
    )


def too_large(size: int | None, limit: int) -> CallError:
    """Return the error of a file above the hard cap.

    Args:
        size: Its length in bytes; None where the limit itself ended the writing.
        limit: The cap in bytes.
    """
    return CallError(
        Code.E_FILE_TOO_LARGE,
        "Generated file exceeds processing limits",
        details={
            "file_size_bytes": size,
            "current_limit_bytes": limit,
            "suggestion": "Consider generating summary or using chunked processing",
        },
    )


def artifact_missing(path: str) -> CallError:
    """Return the error of an artifact whose file does not exist."""
    shown = _short_path(path)
    return CallError(
        Code.E_INVALID_RESULT,
        f"The tool named the file {shown!r} in its result, but there is no such file",
        details={
            "where": "artifacts",
            "attempted_path": shown,
            "suggestion": "Write and close the file before returning its path",
        },
    )


def not_whole(path: str, problem: str, cure: str) -> CallError:
    """Return the error of a database that is not whole without a log that lies beside it."""
    shown = _short_path(path)
    return CallError(
        Code.E_INVALID_RESULT,
        f"The database {shown!r} is not whole: {problem}",
        details={
            "where": "artifacts",
            "attempted_path": shown,
            "suggestion": f"{cure}, or close the connection, before the tool returns",
            "refused_for": "not_whole",
        },
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
        chain: The exceptions behind it: causes, contexts, members of a group. Each has its relation, type,
            message, notes and frames.
        retryable: What the tool says about trying again.
        flag: The option that would show it a file that it did not find, where it sees nothing of the folder;
            or that would let it have the socket, the network or the variable that it lacked.
        relative: The relative path of a file that it did not find, if it was one.
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
    """Return the details of an exception beside its type and message, if any."""
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
        status: The wait status in words, where known.
        cause: Why it ended, where that was not a fault of the tool.
        memory_peak_bytes: Its memory peak, where known.
        output: Last lines it wrote to standard output and error.
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
    """Return the error of a call whose workers ended, each time that it was tried, before it had begun."""
    return CallError(
        Code.E_CRASHED,
        f"The call could not begin: {problem}",
        details={"problem": problem, "suggestion": "Call again in a moment; nothing of it has been done"},
    )


def _busy(sentence: str, retry_after_s: float, suggestion: str, **facts: object) -> CallError:
    seconds = _whole(retry_after_s)
    details = {"retry_after_seconds": seconds, **facts, "suggestion": suggestion}
    return CallError(Code.E_BUSY, f"{sentence}; try again in {seconds} seconds", details=details)


def stopping(retry_after_s: int) -> CallError:
    """Return the error of a call that came as the server was being stopped."""
    return _busy(
        "The server is being stopped and takes no new calls",
        retry_after_s,
        "Try again: another server, or the next start of this one, will take the call",
    )


def stopped() -> CallError:
    """Return the error of a call that was ended with its server."""
    return CallError(
        Code.E_CANCELLED,
        "The server was stopped before the tool had answered",
        details={
            "suggestion": "Call again once the server is back. For the operator: drain_s says how long calls "
            "may go on when the server is stopped"
        },
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


def tool_not_found(name: str, names: Sequence[str]) -> CallError:
    """Return the error of a call to a tool that does not exist. `names` are those that do."""
    alike = nearest(name, names, least=0.5)
    hint = f"Did you mean {_listed(alike)}?" if alike else f"The tools are {_listed(names) or 'none'}"
    return CallError(
        Code.E_TOOL_NOT_FOUND,
        f"There is no tool named {legible(name)!r}",
        details={"name": legible(name), "nearest": alike, "suggestion": hint},
    )


def invalid_argument(message: str, *, argument: str | None = None) -> CallError:
    """Return the error of arguments that fail the tool's schema."""
    details = {} if argument is None else {"argument": legible(argument)}
    return CallError(Code.E_INVALID_ARGUMENT, legible(message), details=details)


def file_not_found(name: str, alike: Sequence[str]) -> CallError:
    """Return the error of a call that failed for lack of a file the user does not have."""
    hint = f"Did you mean {_listed(alike)}?" if alike else "Put the file into My Files first"
    return CallError(
        Code.E_FILE_NOT_FOUND,
        f"There is no file named {legible(name)!r} among the user's files",
        details={"name": legible(name), "nearest": list(alike), "suggestion": hint},
    )


def invalid_result(where: str, problem: str) -> CallError:
    """Return the error of a result, or a part of one, that breaks the contract."""
    return CallError(
        Code.E_INVALID_RESULT,
        f"The tool's result breaks the contract: {problem}",
        details={"where": where, "suggestion": "Return one JSON object with `results`, see the contract"},
    )


def internal_error(call: str) -> CallError:
    """Return the error of a call that failed for a fault of the runner. `call` is its id in the log."""
    return CallError(
        Code.E_INTERNAL,
        f"The server failed while it handled the call {call}; neither the tool nor the call is to blame",
        details={
            "call": call,
            "suggestion": "Try again. If it fails again, tell the operator this id: the log has the cause",
        },
    )


def network_denied(host: str | None, port: int | None) -> CallError:
    """Return the error of a tool that tried to reach what it may not. Host and port where they are known."""
    where = None if host is None else legible(written(host, port), PATH_MAX_CHARS)
    flag = "--allow-net" if where is None else f"--allow-net={where}"
    return CallError(
        Code.E_NETWORK_DENIED,
        f"The tool tried to reach {where or 'the network'}, which is not allowed",
        details={
            "host": None if host is None else legible(host),
            "port": port,
            "flag": flag,
            "suggestion": f"Start the runner with {flag}, or give the tool its data as a file",
        },
    )


def socket_denied(kind: str, *, flag: str | None = None) -> CallError:
    """Return the error of a tool that tried to make a socket of a kind that it may not have.

    Args:
        kind: Family, type and protocol, as the kernel names them.
        flag: The option that would have allowed it; None for what nothing allows.
    """
    may = "which is never allowed" if flag is None else "which is not allowed"
    suggestion = "Use TCP connections; names are looked up by the host, without UDP"
    if flag is not None:
        suggestion = (
            f"Start the runner with {flag}: processes of the tool then reach each other by sockets in its "
            "home, and nobody else (tier `namespace`)"
        )
    return CallError(
        Code.E_NETWORK_DENIED,
        f"The tool tried to make a socket of another kind than TCP ({legible(kind)}), {may}",
        details={"host": None, "port": None, "flag": flag, "suggestion": suggestion},
    )


def program_denied(program: str) -> CallError:
    """Return the error of a tool that tried to run a program that it may not run."""
    shown = _short_path(program)
    return CallError(
        Code.E_INVALID_PATH,
        f"The tool tried to run {shown}, which is not allowed",
        details={
            "attempted_path": shown,
            "allowed_prefix": None,
            "problem": "program",
            "flag": f"--allow-run={shown}",
            "suggestion": f"Start the runner with --allow-run={shown} and without --deny-run",
        },
    )


def cancelled() -> CallError:
    """Return the error of a call that its client cancelled."""
    return CallError(Code.E_CANCELLED, "The call was cancelled before the tool answered")


def busy(retry_after_s: float, *, value: int) -> CallError:
    """Return the error of a call that was not admitted.

    Args:
        retry_after_s: When to come back, in seconds.
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
        retry_after_s: When to come back, in seconds.
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
    """Return the error of a call above a limit of the operator's.

    Args:
        setting: The limit, by its name in the settings.
        most: What it allows.
        retry_after_s: When to come back, in seconds.
        of_user: Whether it is of this user alone.
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
    return CallError(
        Code.E_UNAUTHORIZED,
        f"{legible(tool)} needs a user who has logged in{needed}",
        details={"problem": problem, "scopes": [*scopes], "suggestion": "Log in, and call it again"},
    )


def approval_needed(tool: str, *, rule: str, name: str, expires_s: float) -> CallError:
    """Return the error of a call that waits for the operator.

    Args:
        tool: Name of the tool.
        rule: Name of the rule that holds it.
        name: Id of the request.
        expires_s: Life of the request, in seconds.
    """
    return CallError(
        Code.E_APPROVAL,
        f"{legible(tool)} was not run: the rule approvals.{rule} holds this call until a person approves it",
        details={
            "rule": rule,
            "approval": name,
            "command": f"runner approve {name}",
            "expires_in_seconds": _whole(expires_s),
            "suggestion": f"Ask the operator to run `runner approve {name}`, then make the identical call "
            "again; other arguments need another approval",
        },
    )


def approval_refused(tool: str, *, rule: str, why: str) -> CallError:
    """Return the error of a call that a person did not approve.

    Args:
        tool: Name of the tool.
        rule: Name of the rule that held it.
        why: The answer, as a clause.
    """
    return CallError(
        Code.E_APPROVAL,
        f"{legible(tool)} was not run: {why} (rule approvals.{rule})",
        details={"rule": rule, "suggestion": "Do not repeat the call; ask the person what to do instead"},
    )


def approval_busy(most: int) -> CallError:
    """Return the error of a call that cannot wait for an approval, since too many do.

    Args:
        most: Number of calls of one user that may wait.
    """
    return CallError(
        Code.E_BUSY,
        f"The call was not run: too many calls already wait for an approval, at most {most} of one user",
        details={
            "limit": "waiting approvals",
            "value": most,
            "suggestion": "Wait until they are answered; `runner approve` lists those of the operator",
        },
    )


def approval_store_failed(state: Path, problem: str) -> CallError:
    """Return the error of a call whose approval can be neither recorded nor used.

    Args:
        state: The state folder.
        problem: Why, as a clause.
    """
    return CallError(
        Code.E_STORE,
        f"The call was not run: it needs an approval, and {state / 'approvals'} cannot be used: {problem}",
        details={
            "suggestion": "For the operator: make room or restore the folder, owned by the server, mode 0700"
        },
    )


def not_for_code(tool: str) -> CallError:
    """Return the error of a call by code of a tool that is not for models, or that no server lists."""
    return CallError(
        Code.E_INVALID_ARGUMENT,
        f"{legible(tool)} may not be called by code: its _meta.ui.visibility does not name `model`, or its "
        "server does not list it",
        details={"suggestion": "Name a tool that search finds"},
    )


def not_for_widgets(tool: str, *, may_call: bool) -> CallError:
    """Return the error of a call that a widget asked for and may not make.

    Args:
        tool: Name of the tool.
        may_call: Whether widgets may call it after a person said yes.
    """
    if may_call:
        return CallError(
            Code.E_INVALID_ARGUMENT,
            f"{legible(tool)} may destroy something, so a widget may call it only after a person said yes",
            details={
                "suggestion": "Annotate the tool with readOnlyHint or destructiveHint=false if it does not"
            },
        )
    return CallError(
        Code.E_INVALID_ARGUMENT,
        f"{legible(tool)} may not be called by a widget: its _meta.ui.visibility does not name `app`",
        details={"suggestion": "Name it there if widgets are to call it, as Widget(accessible=True) does"},
    )


def legible(text: str, limit: int = TEXT_MAX_CHARS) -> str:
    """Return `text` so that it can be written as JSON in UTF-8, cut to `limit` characters."""
    return cut(text, limit).encode("utf-8", "replace").decode("utf-8")


def _short_path(path: str) -> str:
    """Return a path in full where it is of a usual length, else its beginning and its end."""
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
