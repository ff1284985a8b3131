"""Rate limit of log lines, with the number of those left out."""

from dataclasses import dataclass

__all__ = ["NowAndThen"]

_EVERY_S = 10.0


@dataclass(slots=True, kw_only=True, eq=False)
class NowAndThen:
    """Counts what is due. The time is an argument, in seconds.

    Attributes:
        every_s: How far apart two are said, in seconds.
    """

    every_s: float = _EVERY_S
    _times: int = 0
    _reported_at: float = float("-inf")

    def due(self, *, now: float) -> int:
        """Count one more; return how many there were since the last that was said, or 0 to say nothing."""
        self._times += 1
        if now - self._reported_at <= self.every_s:
            return 0
        times, self._times, self._reported_at = self._times, 0, now
        return times
