"""Number of parked workers in a pool: as many as recent concurrent calls needed. Decides only.

A call that finds no parked worker waits for a fork, and raises the number by one if there is memory. A period
with a spare worker throughout lowers it by one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["CALM_S", "IdleWorkers"]

CALM_S = 30.0
"""Time after which what was never needed is given up, in seconds."""


@dataclass(slots=True, kw_only=True)
class IdleWorkers:
    """The number of workers that a pool keeps parked.

    Attributes:
        least: The number to begin with, and never to go below.
        most: The number never to go above.
        size: The number now.
    """

    least: int
    most: int
    size: int = field(init=False)
    _spare: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"a number of {self.least} to {self.most} workers")
        self.size = self.least
        self._spare = self.size

    def found(self, parked: int, *, has_room: Callable[[], bool]) -> None:
        """Take note of a call that found so many workers parked.

        Args:
            parked: Their number, the one that the call takes among them.
            has_room: Says whether there is memory for one more; asked only where that decides.
        """
        self._spare = min(self._spare, parked - 1)
        if parked == 0 and self.size < self.most and has_room():
            self.size += 1

    def calm(self) -> None:
        """Take note that `CALM_S` have passed."""
        if self._spare > 0 and self.size > self.least:
            self.size -= 1
        self._spare = self.size
