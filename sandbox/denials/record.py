"""What a worker tried and was denied, kept once each and bounded.

Source: requirement S1-102.
"""

import contextlib
from collections.abc import Callable

from sandbox.outcome import Denial

__all__ = ["MAX_DENIALS", "Recorder"]

MAX_DENIALS = 100


class Recorder:
    """Collects denials; a tool that hits the same wall a million times is told of once.

    Args:
        forward: Called with every denial that is new, for example to tell the host.
        limit: How many different denials are kept; later ones are dropped.
    """

    def __init__(self, forward: Callable[[Denial], None] | None = None, *, limit: int = MAX_DENIALS) -> None:
        self._forward = forward
        self._limit = limit
        # A dictionary keeps the order and needs no lock: a signal handler may report within a report.
        self._denials: dict[Denial, None] = {}
        self._databases: dict[str, None] = {}

    def begin(self, forward: Callable[[Denial], None]) -> None:
        """Forget what was denied so far and tell `forward` from now on: a worker in place of its zygote."""
        self._denials.clear()
        self._databases.clear()
        self._forward = forward

    def turn_to(self, forward: Callable[[Denial], None]) -> None:
        """Forget what was denied so far and tell `forward` from now on: the next call of a worker.

        Databases stay known, as connections to them may stay open.
        """
        self._denials.clear()
        self._forward = forward

    def report(self, denial: Denial) -> None:
        """Keep `denial` if it is new and there is room."""
        if denial in self._denials or len(self._denials) >= self._limit:
            return
        self._denials[denial] = None
        if self._forward is not None:
            # The denial must reach the caller as such, also when the host has gone.
            with contextlib.suppress(OSError):
                self._forward(denial)

    def has(self, path: str) -> bool:
        """Say whether a denial of this path was kept, whatever was tried with it."""
        return any(denial.path == path for denial in self._denials)

    def opened_to_read(self, database: str) -> None:
        """Keep that a database was opened which may be read only: SQLite's errors do not name theirs."""
        self._databases.pop(database, None)
        if len(self._databases) < self._limit:
            self._databases[database] = None

    def databases(self) -> tuple[str, ...]:
        """Return the databases that may be read only, the last opened last."""
        return tuple(self._databases)

    def denials(self) -> tuple[Denial, ...]:
        """Return what was kept, oldest first."""
        return tuple(self._denials)
