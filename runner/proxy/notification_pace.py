"""How many notifications of a server are passed on: many at once, and then so many a second. Only counts.

A server may say more than anybody reads, and each message that is passed on takes a moment of everybody's
time. What is too much is dropped and counted, and the client is told how many. Time is an argument.
"""

from dataclasses import dataclass, field

from runner.system.refilled_budget import RefilledBudget

__all__ = ["DROPPED", "NotificationPace"]

DROPPED = "toolcell/dropped"
"""The method by which it is passed on that notifications were dropped; `count` says how many."""

_REPORT_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class NotificationPace:
    """The pace of one connection.

    Attributes:
        at_once: How many may come one after the other.
        per_s: How many a second afterwards.
        dropped: How many were dropped since that was last told.
    """

    at_once: int = 1000
    per_s: float = 100.0
    dropped: int = 0
    _budget: RefilledBudget = field(init=False)
    _told_at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self._budget = RefilledBudget(at_once=self.at_once, per_s=self.per_s)

    def is_used_up(self, now: float) -> bool:
        """Say whether the next one would be dropped."""
        return not self._budget.has(1, now=now)

    def takes(self, now: float) -> bool:
        """Say whether one more is passed on, and count it either way."""
        if self.is_used_up(now):
            self.dropped += 1
            return False
        self._budget.takes(1, now=now)
        return True

    def tell(self, now: float, *, at_last: bool = False) -> int:
        """Return how many dropped ones to tell of now; `at_last` also where that was told a moment ago."""
        if not self.dropped or (not at_last and now - self._told_at < _REPORT_EVERY_S):
            return 0
        count, self.dropped, self._told_at = self.dropped, 0, now
        return count
