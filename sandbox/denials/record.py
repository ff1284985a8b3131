"""Denied operations of a worker, each once and bounded.

Source: requirement S1-102.
"""

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from sandbox.outcome import Denial

__all__ = ["MAX_DENIALS", "Recorder"]

MAX_DENIALS = 100


@dataclass(slots=True, eq=False)
class _Call:
    """The denials of one call, and the function that they are reported to."""

    forward: Callable[[Denial], None] | None
    # A dictionary keeps the order without a lock: a signal handler may report during a report.
    denials: dict[Denial, None] = field(default_factory=dict)


_call: ContextVar[_Call | None] = ContextVar("call_of_denials", default=None)


class Recorder:
    """Collector of denials; a denial that repeats a million times is reported once.

    Args:
        forward: Called with every new denial, for example to report it to the host.
        limit: Most different denials kept; later ones are dropped.
    """

    def __init__(self, forward: Callable[[Denial], None] | None = None, *, limit: int = MAX_DENIALS) -> None:
        self._limit = limit
        self._latest = _Call(forward)
        self._databases: dict[str, None] = {}

    def begin(self, forward: Callable[[Denial], None]) -> None:
        """Forget all denials and report to `forward` from now on: a worker replaces its zygote."""
        self._databases.clear()
        self.turn_to(forward)

    def turn_to(self, forward: Callable[[Denial], None]) -> None:
        """Forget all denials and report to `forward` from now on, for the next call of a worker.

        Databases stay known, as connections to them may stay open.
        """
        self._latest = _Call(forward)

    def enter(self, forward: Callable[[Denial], None]) -> None:
        """Report denials in this context to `forward`, for one of several concurrent calls.

        A plain thread has no context: its denials are reported to the call that began last.
        """
        self.turn_to(forward)
        _call.set(self._latest)

    @property
    def _mine(self) -> _Call:
        return _call.get() or self._latest

    def report(self, denial: Denial) -> None:
        """Keep `denial` if it is new and there is room."""
        mine = self._mine
        if denial in mine.denials or len(mine.denials) >= self._limit:
            return
        mine.denials[denial] = None
        if mine.forward is not None:
            # The denial must reach the caller of the operation, even if the host has exited.
            with contextlib.suppress(OSError):
                mine.forward(denial)

    def has(self, path: str) -> bool:
        """Return whether a denial of this path was recorded, for any operation."""
        return any(denial.path == path for denial in self._mine.denials)

    def opened_to_read(self, database: str) -> None:
        """Record that a read-only database was opened: errors of SQLite do not name their database."""
        self._databases.pop(database, None)
        if len(self._databases) < self._limit:
            self._databases[database] = None

    def databases(self) -> tuple[str, ...]:
        """Return the read-only databases, in order of opening."""
        return tuple(self._databases)

    def denials(self) -> tuple[Denial, ...]:
        """Return the recorded denials, oldest first."""
        return tuple(self._mine.denials)
