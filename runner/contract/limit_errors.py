"""Errors of exceeded resource limits, in words for people: the event and the remedy.

The limits, and the setting that raises each, are in `runner.settings.resource_limits`.

Source: docs/isolation.md; the table of error codes in `docs/cli.md`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.errors import CallError, Code
from runner.settings.resource_limits import DISK_FULL, LIMITS
from runner.settings.values import LimitFacts
from sandbox.outcome import Reached
from sandbox.policy import MIB

__all__ = ["disk_full", "over_limit", "server_memory_full"]


class _Words(NamedTuple):
    """Words and setting of one limit; `{limit}` and `{used}` are filled in."""

    says: str
    cure: str


_SMALLER = "Read the data in chunks"
_FEWER_FILES = "Write less, or delete what is no longer needed"

_WORDS: Mapping[str, _Words] = {
    "memory_bytes": _Words("The tool needed more memory than its limit of {limit}", _SMALLER),
    "call_memory_bytes": _Words(
        "The call's processes used {used} of memory in total; the limit is {limit}",
        "Start fewer processes, or give each less",
    ),
    "total_memory_bytes": _Words(
        "All calls of the user together needed more memory than their limit of {limit}",
        "Run fewer calls at a time",
    ),
    "cpu_s": _Words(
        "The tool used more processor time than its limit of {limit}", "Compute less in one call"
    ),
    "file_bytes": _Words(
        "Generated file exceeds processing limits", "Consider generating summary or using chunked processing"
    ),
    "home_bytes": _Words("The user's folder held {used}; its limit is {limit}", _FEWER_FILES),
    "home_entries": _Words("The user's folder held more than its limit of {limit}", _FEWER_FILES),
    "open_files": _Words(
        "The tool had more files open than its limit of {limit}", "Close files that are no longer needed"
    ),
    "call_processes": _Words("The call had {used} at once; its limit is {limit}", "Start fewer at a time"),
    "processes": _Words(
        "The tool could start no further process or thread; the user's limit is {limit}",
        "Start fewer at a time",
    ),
    "frame_bytes": _Words(
        "The tool's result is {used} long; the limit is {limit}",
        "Write long results to a file and return its path",
    ),
}
"""By the name of the limit in `sandbox.policy.Limits`: the event, and remedies other than raising it."""


def over_limit(reached: Reached, *, memory_peak_bytes: int | None = None) -> CallError:
    """Return the error of a call that a limit has ended: the limit, its value, the use, the remedy.

    Args:
        reached: The limit, and its use.
        memory_peak_bytes: Peak memory, if it was measured.
    """
    facts = LIMITS[reached.limit]
    details: dict[str, Any] = {
        "limit": reached.limit,
        "value": reached.value,
        "used": reached.used,
        "unit": facts.unit,
        "setting": facts.setting,
        **_of_old(facts.code, reached),
    }
    if facts.code is Code.E_MEMORY and memory_peak_bytes is not None:
        details["memory_peak_bytes"] = memory_peak_bytes
    words = _WORDS[reached.limit]
    raising = f"raise {facts.setting}" + (" for this tool" if facts.own else "")
    details["suggestion"] = f"{words.cure}, or {raising}"
    sentence = words.says.format(limit=_amount(reached.value, facts), used=_amount(reached.used, facts))
    return CallError(facts.code, sentence, details=details)


def server_memory_full(reached: Reached, *, memory_peak_bytes: int | None = None) -> CallError:
    """Return the error of a call that was ended because the server as a whole ran out of memory.

    Args:
        reached: The limit of the server's container or machine, and the call's use of it.
        memory_peak_bytes: Peak memory of the call, if it was measured.
    """
    used = "" if reached.used is None else f", of which this call had {_mib(reached.used)}"
    details = {
        "limit": reached.limit,
        "value": reached.value,
        "used": reached.used,
        "unit": "bytes",
        "setting": "call_memory_mb",
        "suggestion": "Need less in one call, or run fewer at a time. For the operator: give the server more "
        "memory (--memory of its container, MemoryMax of its service), or lower call_memory_mb or max_calls",
    }
    if memory_peak_bytes is not None:
        details["memory_peak_bytes"] = memory_peak_bytes
    return CallError(
        Code.E_RESOURCE_LIMIT,
        f"The server's memory was used up: it has {_mib(reached.value)} for all calls together{used}",
        details=details,
        # A call that used little may succeed at another time.
        retryable=reached.used is not None and 2 * reached.used < reached.value,
    )


def _mib(number: int) -> str:
    return f"{number // MIB} MiB"


def disk_full() -> CallError:
    """Return the error of a call that found no room on the disk."""
    return CallError(
        Code.E_QUOTA,
        "There is no room left on the disk that holds the users' folders",
        details={
            "limit": DISK_FULL,
            "value": None,
            "used": None,
            "unit": "bytes",
            "setting": "homes",
            "suggestion": "Write less, or put the users' folders on a larger disk with `homes`",
        },
    )


def _of_old(code: Code, reached: Reached) -> dict[str, Any]:
    """Return the details of the code from contract versions in which limits had no names."""
    if code is Code.E_MEMORY:
        return {"limit_bytes": reached.value}
    if code is Code.E_FILE_TOO_LARGE:
        return {"file_size_bytes": reached.used, "current_limit_bytes": reached.value}
    if code is Code.E_INVALID_RESULT:
        return {"where": "frame"}
    return {}


def _amount(number: int | None, facts: LimitFacts) -> str:
    return f"too many {facts.unit}" if number is None else f"{number} {facts.unit}"
