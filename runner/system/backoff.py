"""Exponential back-off with an upper bound. Pure calculation.

Source: A. Brooker, "Exponential Backoff And Jitter", 2015.
"""

from dataclasses import dataclass

__all__ = ["BackOff", "doubled_s"]

# Above every upper bound in use, and low enough to keep a float finite.
_MOST_DOUBLINGS = 20


def doubled_s(failures: int, *, first_s: float, most_s: float) -> float:
    """Return the seconds to wait after a number of failures in a row; 0 after none."""
    return min(most_s, first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)) if failures > 0 else 0.0


@dataclass(slots=True)
class BackOff:
    """Time of the next attempt. Time is an argument, in seconds."""

    first_s: float = 0.5
    most_s: float = 30.0
    _failures: int = 0
    _failed_at: float = 0.0

    def wait_s(self, now: float) -> float:
        """Return the seconds to wait before the next attempt."""
        delay = doubled_s(self._failures, first_s=self.first_s, most_s=self.most_s)
        return max(0.0, self._failed_at + delay - now) if self._failures else 0.0

    def failed(self, now: float) -> None:
        """Record a failure."""
        self._failures += 1
        self._failed_at = now

    def worked(self) -> None:
        """Record a success, which resets the count of failures."""
        self._failures = 0
