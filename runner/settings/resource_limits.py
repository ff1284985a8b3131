"""The resource limits of a call, as people meet them: which setting raises each, and what its error says.

Source: docs/limits.md, which has a row for each of these; the table of error codes in `docs/cli.md`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runner.errors import CallError, Code
from sandbox.host.server_memory import ServerMemory
from sandbox.outcome import Reached
from sandbox.policy import MIB, Limits

__all__ = [
    "DISK_FULL",
    "LIMITS",
    "LimitFacts",
    "Memories",
    "disk_full",
    "limits_of",
    "memory_promised",
    "over_limit",
    "server_memory_full",
    "warn_of_memory",
]

log = logging.getLogger(__name__)

DISK_FULL = "disk"
"""What is reached where the disk below the homes is full, or a quota of its file system; no limit of ours."""


class Memories(Protocol):
    """The settings that say how much memory calls may have."""

    @property
    def max_calls(self) -> int:
        """Calls that run at the same time."""

    @property
    def call_memory_mb(self) -> int:
        """Memory of all processes of a call, in MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """What there is to say of one limit.

    Attributes:
        setting: The setting that it comes from.
        code: The error of a call that it ends; None if it ends none.
        unit: What it counts.
        says: The sentence for people, of which `{limit}` and `{used}` are filled in.
        cure: What else to do than to raise it.
        factor: How many units one of the setting is.
        own: Whether a tool can have a value of its own.
    """

    setting: str
    code: Code | None
    unit: str
    says: str
    cure: str
    factor: int = 1
    own: bool = True


_SMALLER = "Read the data in chunks"
_FEWER_FILES = "Write less, or delete what is not needed any more"

LIMITS: Mapping[str, LimitFacts] = {
    "memory_bytes": LimitFacts(
        setting="memory_mb",
        code=Code.E_MEMORY,
        unit="bytes",
        says="The tool needed more memory than its limit of {limit}",
        cure=_SMALLER,
        factor=MIB,
    ),
    "call_memory_bytes": LimitFacts(
        setting="call_memory_mb",
        code=Code.E_MEMORY,
        unit="bytes",
        says="The processes of the call together had {used} of memory; their limit is {limit}",
        cure="Start fewer processes, or give each less",
        factor=MIB,
    ),
    "total_memory_bytes": LimitFacts(
        setting="user_memory_mb",
        code=Code.E_MEMORY,
        unit="bytes",
        says="All calls of the user together needed more memory than their limit of {limit}",
        cure="Run fewer calls at a time",
        factor=MIB,
        own=False,
    ),
    "cpu_s": LimitFacts(
        setting="cpu_s",
        code=Code.E_RESOURCE_LIMIT,
        unit="seconds",
        says="The tool used more processor time than its limit of {limit}",
        cure="Compute less in one call",
    ),
    "file_bytes": LimitFacts(
        setting="max_file_bytes",
        code=Code.E_FILE_TOO_LARGE,
        unit="bytes",
        says="Generated file exceeds processing limits",
        cure="Consider generating summary or using chunked processing",
    ),
    "home_bytes": LimitFacts(
        setting="max_home_bytes",
        code=Code.E_QUOTA,
        unit="bytes",
        says="The user's folder held {used}; its limit is {limit}",
        cure=_FEWER_FILES,
    ),
    "home_entries": LimitFacts(
        setting="max_home_files",
        code=Code.E_QUOTA,
        unit="files and folders",
        says="The user's folder held more than its limit of {limit}",
        cure=_FEWER_FILES,
    ),
    "open_files": LimitFacts(
        setting="open_files",
        code=Code.E_RESOURCE_LIMIT,
        unit="descriptors",
        says="The tool had more files open than its limit of {limit}",
        cure="Close files that are not needed any more",
    ),
    "call_processes": LimitFacts(
        setting="call_processes",
        code=Code.E_RESOURCE_LIMIT,
        unit="processes and threads",
        says="The call had {used} at once; its limit is {limit}",
        cure="Start fewer at a time",
    ),
    "processes": LimitFacts(
        setting="user_processes",
        code=Code.E_RESOURCE_LIMIT,
        unit="processes and threads",
        says="The tool could start no further process or thread; the user's limit is {limit}",
        cure="Start fewer at a time",
        own=False,
    ),
    "frame_bytes": LimitFacts(
        setting="max_answer_bytes",
        code=Code.E_INVALID_RESULT,
        unit="bytes",
        says="The tool's result is {used} long; the limit is {limit}",
        cure="Write long results to a file and return its path",
    ),
    "output_bytes": LimitFacts(
        setting="max_output_bytes",
        code=None,
        unit="bytes",
        says="Of what the tool printed the last {limit} are kept",
        cure="Print less",
    ),
}
"""By the name that each has in `sandbox.policy.Limits`. Too much output is dropped and ends no call."""


def limits_of(values: Mapping[str, Any]) -> Limits:
    """Return limits from the values of their settings, by the settings' names."""
    return Limits(**{name: values[facts.setting] * facts.factor for name, facts in LIMITS.items()})


def over_limit(reached: Reached, *, memory_peak_bytes: int | None = None) -> CallError:
    """Return the error of a call that a limit has ended: which one, its value, what was used, what to do.

    Args:
        reached: The limit, and what was used of it.
        memory_peak_bytes: Most memory that was seen, where it was looked at.
    """
    facts = LIMITS[reached.limit]
    if facts.code is None:
        raise ValueError(f"{reached.limit} ends no call")
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
    raising = f"raise {facts.setting}" + (" for this tool" if facts.own else "")
    details["suggestion"] = f"{facts.cure}, or {raising}"
    said = facts.says.format(limit=_amount(reached.value, facts), used=_amount(reached.used, facts))
    return CallError(facts.code, said, details=details)


def server_memory_full(reached: Reached, *, memory_peak_bytes: int | None = None) -> CallError:
    """Return the error of a call that was ended because the server as a whole ran out of memory.

    Args:
        reached: The limit of the server's container or machine, and what the call used of it.
        memory_peak_bytes: Most memory of the call that was seen, where it was looked at.
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
        # Who had little of it may find room at another time.
        retryable=reached.used is not None and 2 * reached.used < reached.value,
    )


def memory_promised(*, max_calls: int, call_memory_mb: int) -> int:
    """Return how much memory, in bytes, the settings let all calls have together."""
    return max_calls * call_memory_mb * MIB


def warn_of_memory(settings: "Memories", memory: ServerMemory) -> None:
    """Log a warning where the settings promise calls more than the server has."""
    promised = memory_promised(max_calls=settings.max_calls, call_memory_mb=settings.call_memory_mb)
    room = memory.limit_bytes - memory.reserve_bytes
    if promised <= room:
        return
    fits = max(1, room // settings.max_calls // MIB)
    log.log(
        # Most machines have less than the defaults add up to; whoever sets a limit wants to hear of it.
        logging.INFO if memory.group is None else logging.WARNING,
        "calls may use more memory together than there is; the largest is ended when it is used up",
        extra={
            "promised": f"max_calls ({settings.max_calls}) x call_memory_mb ({settings.call_memory_mb}) "
            f"= {_mib(promised)}",
            "limit": f"{_mib(memory.limit_bytes)} of {memory.whose}",
            "cure": f"the setting max_calls = {max(1, room // settings.call_memory_mb // MIB)}, "
            f"or call_memory_mb = {fits}, or more memory",
        },
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
    """Return the details that the contract has had for the code before limits had names."""
    if code is Code.E_MEMORY:
        return {"limit_bytes": reached.value}
    if code is Code.E_FILE_TOO_LARGE:
        return {"file_size_bytes": reached.used, "current_limit_bytes": reached.value}
    if code is Code.E_INVALID_RESULT:
        return {"where": "frame"}
    return {}


def _amount(number: int | None, facts: LimitFacts) -> str:
    return f"too many {facts.unit}" if number is None else f"{number} {facts.unit}"
