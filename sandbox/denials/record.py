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
    """The denials of one call, and where they are reported."""

    forward: Callable[[Denial], None] | None
    # A dictionary keeps the order and needs no lock: a signal handler may report within a report.
    denials: dict[Denial, None] = field(default_factory=dict)


_call: ContextVar[_Call | None] = ContextVar("call_of_denials", default=None)


class Recorder:
    """Collects denials; a tool that hits the same wall a million times is told of once.

    Args:
        forward: Called with every denial that is new, for example to tell the host.
        limit: How many different denials are kept; later ones are dropped.
    """

    def __init__(self, forward: Callable[[Denial], None] | None = None, *, limit: int = MAX_DENIALS) -> None:
        self._limit = limit
        self._latest = _Call(forward)
        self._databases: dict[str, None] = {}

    def begin(self, forward: Callable[[Denial], None]) -> None:
        """Forget what was denied so far and tell `forward` from now on: a worker in place of its zygote."""
        self._databases.clear()
        self.turn_to(forward)

    def turn_to(self, forward: Callable[[Denial], None]) -> None:
        """Forget what was denied so far and tell `forward` from now on: the next call of a worker.

        Databases stay known, as connections to them may stay open.
        """
        self._latest = _Call(forward)

    def enter(self, forward: Callable[[Denial], None]) -> None:
        """Report to `forward` what is denied in this context: one call beside others.

        A plain thread has no context: what is denied there is reported to the call that began last.
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
            # The denial must reach the caller as such, also when the host has gone.
            with contextlib.suppress(OSError):
                mine.forward(denial)

    def has(self, path: str) -> bool:
        """Return whether a denial of this path was kept, whatever was tried with it."""
        return any(denial.path == path for denial in self._mine.denials)

    def opened_to_read(self, database: str) -> None:
        """Keep that a database was opened which may be read only: SQLite's errors do not name theirs."""
        self._databases.pop(database, None)
        if len(self._databases) < self._limit:
            self._databases[database] = None

    def databases(self) -> tuple[str, ...]:
        """Return the databases that may be read only, the last opened last."""
        return tuple(self._databases)

    def denials(self) -> tuple[Denial, ...]:
        """Return the recorded denials, oldest first."""
        return tuple(self._mine.denials)
