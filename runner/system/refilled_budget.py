"""How much may come at once, and then how much in a second. Only counts; time is an argument."""

from dataclasses import dataclass, field

__all__ = ["RefilledBudget"]


@dataclass(slots=True, kw_only=True, eq=False)
class RefilledBudget:
    """What is left of a budget that fills again with time.

    Attributes:
        at_once: How much may come at once.
        per_s: How much a second afterwards.
    """

    at_once: float
    per_s: float
    _left: float = field(init=False)
    _at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self._left = self.at_once

    def has(self, amount: float, *, now: float) -> bool:
        """Say whether so much may come now; `now` in seconds."""
        self._left = min(self.at_once, self._left + max(0.0, now - self._at) * self.per_s)
        self._at = now
        return amount <= self._left

    def takes(self, amount: float, *, now: float) -> bool:
        """Say whether so much may come now, and count it if it may."""
        if not self.has(amount, now=now):
            return False
        self._left -= amount
        return True
