"""Rate limit of a server's notifications. Counts only.

A server may say more than anybody reads, and each message that is passed on takes a moment of everybody's
time. What is too much is dropped and counted, and the client is told how many. Time is an argument.
"""

from dataclasses import dataclass, field

from sandbox.token_bucket import TokenBucket

__all__ = ["DROPPED", "NotificationPace"]

DROPPED = "toolcell/dropped"
"""The method by which it is passed on that notifications were dropped; `count` says how many."""

_REPORT_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class NotificationPace(TokenBucket):
    """Rate limit of one connection.

    Attributes:
        at_once: Notifications that may come one after the other.
        per_s: Notifications a second afterwards.
        dropped: Number dropped since the last report.
    """

    at_once: float = 1000
    per_s: float = 100
    dropped: int = 0
    _sent_at: float = field(init=False, default=float("-inf"))

    def passes(self, now: float) -> bool:
        """Return whether one more is passed on, and count it either way."""
        passes = self.takes(1, now=now)
        self.dropped += not passes
        return passes

    def tell(self, now: float, *, at_last: bool = False) -> int:
        """Return how many dropped ones to tell of now; `at_last` also where that was told a moment ago."""
        if not self.dropped or (not at_last and now - self._sent_at < _REPORT_EVERY_S):
            return 0
        count, self.dropped, self._sent_at = self.dropped, 0, now
        return count
