"""Rate limit of log lines, with the number of those left out."""

from dataclasses import dataclass

__all__ = ["NowAndThen"]

_EVERY_S = 10.0


@dataclass(slots=True, kw_only=True, eq=False)
class NowAndThen:
    """Counter of events for a rate limit. Time is an argument, in seconds.

    Attributes:
        every_s: Least time between two log lines, in seconds.
    """

    every_s: float = _EVERY_S
    _times: int = 0
    _reported_at: float = float("-inf")

    def due(self, *, now: float) -> int:
        """Count one event; return the number since the last logged one, or 0 to log nothing."""
        self._times += 1
        if now - self._reported_at <= self.every_s:
            return 0
        times, self._times, self._reported_at = self._times, 0, now
        return times
