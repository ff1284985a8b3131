"""Decision on retiring a worker after a call: pure functions."""

from dataclasses import dataclass
from typing import Protocol

from sandbox.host.stopping import WorkerFacts
from sandbox.policy import Limits

__all__ = ["WORKER_CALLS", "Reuse", "holds_too_many", "why_over", "why_overused", "why_unfit"]

WORKER_CALLS = 1000
"""Calls that a worker serves before it is retired: few enough to bound leaks, many enough to rarely fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Lifetime of a worker with its user.

    Attributes:
        calls: Calls that it serves; 1 for a fresh worker for each call.
        age_s: Seconds after its first call began after which it takes no further one.
        idle_s: Seconds without a call after which it is retired.
    """

    calls: int = 1
    age_s: float = 3600.0
    idle_s: float = 300.0

    def __post_init__(self) -> None:
        if self.calls < 1 or self.age_s <= 0 or self.idle_s <= 0:
            raise ValueError(f"need calls >= 1, age_s > 0 and idle_s > 0, got {self}")


class WorkerHistory(Protocol):
    """History of a worker: times in seconds of the monotonic clock."""

    @property
    def calls(self) -> int:
        """The number of its calls."""
        ...

    @property
    def first_called(self) -> float:
        """The time at which its first call began."""
        ...

    @property
    def idle_since(self) -> float:
        """The time at which it was last parked."""
        ...

    @property
    def goes_on(self) -> bool:
        """True if it has jobs between calls."""
        ...


def why_overused(worker: WorkerHistory, reuse: Reuse, *, now: float) -> str | None:
    """Return the reason to retire a worker after its calls; None if it may stay."""
    if worker.calls >= reuse.calls:
        return "calls"
    if now - worker.first_called >= reuse.age_s:
        return "age"
    return None


def why_over(worker: WorkerHistory, reuse: Reuse, *, now: float) -> str | None:
    """Return the reason to retire a parked worker for its calls, age or idle time; None if it may stay."""
    reason = why_overused(worker, reuse, now=now)
    # A worker with a job is not idle; its job ends with the session.
    is_idle = not worker.goes_on and now - worker.idle_since >= reuse.idle_s
    return reason or ("idle" if is_idle else None)


def holds_too_many(descriptors: int, limits: Limits) -> bool:
    """Return whether an idle worker holds more descriptors than half of a call's limit."""
    return descriptors > max(16, limits.open_files // 2)


# Unnamed files on disk count in each call of the user, together with those of the user's other workers.
_UNNAMED_SHARE = 16


def why_unfit(
    facts: WorkerFacts, limits: Limits, *, origin_bytes: int, descriptors: int, unnamed_bytes: int
) -> str | None:
    """Return the reason to retire a parked worker that holds more than half of a call's limit, or None.

    Args:
        facts: Its state in the kernel.
        limits: The limits of its calls.
        origin_bytes: The private memory that it had before its first call.
        descriptors: Its open descriptors.
        unnamed_bytes: Bytes of unnamed files that it holds in its user's home.
    """
    if facts.data_bytes - origin_bytes > limits.memory_bytes // 2:
        return "memory"
    if facts.threads > max(2, limits.call_processes // 2):
        return "threads"
    if holds_too_many(descriptors, limits):
        return "descriptors"
    if unnamed_bytes > limits.home_bytes // _UNNAMED_SHARE:
        return "files without a name"
    return None
