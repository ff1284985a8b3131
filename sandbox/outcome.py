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
    """One denied operation of a worker.

    Attributes:
        operation: The operation, for example `open` or `os.mkdir`.
        path: The path it named.
        layer: The layer that denied it: `guard`, or `kernel` if the guard did not predict it.
        wants: The right to the path that was missing, `read` or `write`, if known.
    """

    operation: str
    path: str
    layer: str = "guard"
    wants: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A resource limit that a call has reached.

    Attributes:
        limit: Its name in `sandbox.policy.Limits`.
        value: The limit, in the unit of its name.
        used: The usage, in the same unit, if known.
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
        status: Wait status text such as `signal SIGKILL` or `exit status 3`, if known.
        cause: Why the worker ended, for `CRASHED`, if it was not at fault.
        fault: The fault of the last frame, for `BROKE_PROTOCOL`.
        reached: The limit that ended it, for `OVER_LIMIT`; for `BROKE_PROTOCOL` if its answer was too long.
        memory_peak_bytes: Peak total memory seen of its processes, if measured.
        cpu_s: Processor seconds of the worker, if requested by the caller.
        denials: Denied operations of the worker.
        output: Last bytes of its standard output and error, decoded.
        elapsed_s: Seconds from lease to end.
        untold: Number of notifications dropped because the listener was too slow.
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
    """Describe a wait status (of `os.waitpid`) in words."""
    exit_code = -(status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF
    if exit_code >= 0:
        return f"exit status {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"
