"""Outcome of a worker: frames and wait status become one value."""

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.call_value import call_value

__all__ = ["Denial", "Ending", "Outcome", "Reached", "describe_status"]


class Ending(enum.Enum):
    """The ways a call can end."""

    ANSWERED = "answered"
    IDLE_TIMEOUT = "idle timeout"
    TOTAL_TIMEOUT = "total timeout"
    CRASHED = "crashed"
    BROKE_PROTOCOL = "broke protocol"
    OVER_LIMIT = "over a limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """One thing the worker tried and was not allowed.

    Attributes:
        operation: What it tried, for example `open` or `os.mkdir`.
        path: The path it named.
        layer: Which layer said no: `guard`, or `kernel` where only the kernel found it.
        wants: What right to the path would have been needed, `read` or `write`, where that is known.
    """

    operation: str
    path: str
    layer: str = "guard"
    wants: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A resource limit that a call has reached.

    Attributes:
        limit: Which one, by its name in `sandbox.policy.Limits`.
        value: The limit, in the unit of its name.
        used: What was used, in the same unit, where it is known.
    """

    limit: str
    value: int
    used: int | None = None


@call_value
class Outcome:
    """Outcome of one call.

    Attributes:
        ending: The kind of end.
        answer: The program's answer frame, for `ANSWERED`.
        answer_bytes: Length of that frame.
        may_have_started: False if the worker ended before its call was sent.
        status: Wait status text such as `signal SIGKILL` or `exit status 3`, where known.
        cause: Why the worker ended, for `CRASHED`, where that was not a fault of its own.
        fault: What was wrong with the last frame, for `BROKE_PROTOCOL`.
        reached: The limit that ended it, for `OVER_LIMIT`; for `BROKE_PROTOCOL` if its answer was too long.
        memory_peak_bytes: Most memory that its processes were seen to have together, if it was looked at.
        cpu_s: Processor seconds of the worker, where the caller wanted to know.
        denials: What the worker tried and was denied.
        output: Last bytes of its standard output and error, decoded.
        elapsed_s: Seconds from lease to end.
        untold: Notifications of the worker that its listener was too slow for.
    """

    ending: Ending
    answer: Mapping[str, object] | None = None
    answer_bytes: int = 0
    may_have_started: bool = True
    status: str | None = None
    cause: str | None = None
    fault: str | None = None
    reached: Reached | None = None
    memory_peak_bytes: int | None = None
    cpu_s: float | None = None
    denials: tuple[Denial, ...] = ()
    output: str = ""
    elapsed_s: float = 0.0
    untold: int = 0


def describe_status(status: int) -> str:
    """Describe a wait status (as `os.waitpid` gives it) in words."""
    exit_code = -(status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF
    if exit_code >= 0:
        return f"exit status {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"
