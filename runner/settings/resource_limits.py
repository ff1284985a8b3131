"""The resource limits of a call: which setting raises each, and which error it ends a call with.

What people are told of each stands in `runner.contract.limit_errors`; a new one has its row in both.

Source: docs/isolation.md, which has a row for each of these; the table of error codes in `docs/cli.md`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runner.errors import Code
from sandbox.host.server_memory import ServerMemory
from sandbox.policy import MIB, Limits

__all__ = [
    "DISK_FULL",
    "LIMITS",
    "LimitFacts",
    "Memories",
    "limits_of",
    "memory_promised",
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
        code: The error of a call that it ends.
        unit: What it counts.
        factor: How many units one of the setting is.
        own: Whether a tool can have a value of its own.
    """

    setting: str
    code: Code
    unit: str
    factor: int = 1
    own: bool = True


LIMITS: Mapping[str, LimitFacts] = {
    "memory_bytes": LimitFacts(
        setting="memory_mb",
        code=Code.E_MEMORY,
        unit="bytes",
        factor=MIB,
    ),
    "call_memory_bytes": LimitFacts(
        setting="call_memory_mb",
        code=Code.E_MEMORY,
        unit="bytes",
        factor=MIB,
    ),
    "total_memory_bytes": LimitFacts(
        setting="user_memory_mb",
        code=Code.E_MEMORY,
        unit="bytes",
        factor=MIB,
        own=False,
    ),
    "cpu_s": LimitFacts(
        setting="cpu_s",
        code=Code.E_RESOURCE_LIMIT,
        unit="seconds",
    ),
    "file_bytes": LimitFacts(
        setting="max_artifact_bytes",
        code=Code.E_FILE_TOO_LARGE,
        unit="bytes",
        own=False,
    ),
    "home_bytes": LimitFacts(
        setting="max_home_bytes",
        code=Code.E_QUOTA,
        unit="bytes",
    ),
    "home_entries": LimitFacts(
        setting="max_home_files",
        code=Code.E_QUOTA,
        unit="files and folders",
        own=False,
    ),
    "open_files": LimitFacts(
        setting="open_files",
        code=Code.E_RESOURCE_LIMIT,
        unit="descriptors",
        own=False,
    ),
    "call_processes": LimitFacts(
        setting="call_processes",
        code=Code.E_RESOURCE_LIMIT,
        unit="processes and threads",
    ),
    "processes": LimitFacts(
        setting="user_processes",
        code=Code.E_RESOURCE_LIMIT,
        unit="processes and threads",
        own=False,
    ),
    "frame_bytes": LimitFacts(
        setting="max_answer_bytes",
        code=Code.E_INVALID_RESULT,
        unit="bytes",
        own=False,
    ),
}
"""Limits by name in `sandbox.policy.Limits`, but for the bound on output, which is fixed and ends no call."""


def limits_of(values: Mapping[str, Any]) -> Limits:
    """Return limits from the values of their settings, by the settings' names."""
    return Limits(**{name: values[facts.setting] * facts.factor for name, facts in LIMITS.items()})


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
