"""The timeout ladder as pure arithmetic: time is an argument, no clock is read.

All rungs are relative to the last progress, or to the start. Progress never moves the total limit.

Source: requirements S1-113 to S1-128; contradictions C15 to C17.
"""

import enum
import math
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["FIRST_NOTICE_S", "LAST_NOTICE_BEFORE_END_S", "SECOND_NOTICE_S", "Deadlines", "Ladder", "Rung"]

FIRST_NOTICE_S = 15.0
SECOND_NOTICE_S = 20.0
LAST_NOTICE_BEFORE_END_S = 5.0


class Rung(enum.Enum):
    """Rung of the ladder: the effect of a certain time of silence."""

    FIRST_NOTICE = "first notice"
    SECOND_NOTICE = "second notice"
    LAST_NOTICE = "last notice"
    IDLE_END = "idle end"
    TOTAL_END = "total end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Time limits of one call. All values in seconds.

    Attributes:
        idle_s: Longest silence between two progress reports.
        total_s: Longest call, whatever it reports. Must not be below `idle_s`.
    """

    idle_s: float = 30.0
    total_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.idle_s <= self.total_s < math.inf:
            raise ValueError(f"need 0 < idle_s <= total_s, got {self.idle_s} and {self.total_s}")


@lru_cache(maxsize=256)
def _rungs(idle_s: float) -> tuple[tuple[float, Rung], ...]:
    """Return the rungs of silence in order, each with its second.

    A notice due at or after the end is dropped.
    """
    notices = (
        (FIRST_NOTICE_S, Rung.FIRST_NOTICE),
        (SECOND_NOTICE_S, Rung.SECOND_NOTICE),
        (idle_s - LAST_NOTICE_BEFORE_END_S, Rung.LAST_NOTICE),
    )
    ordered = sorted((n for n in notices if 0 < n[0] < idle_s), key=lambda n: n[0])
    return (*ordered, (idle_s, Rung.IDLE_END))


@dataclass(slots=True)
class Ladder:
    """Position of one call on its ladder.

    Args:
        deadlines: The limits of the call.
        now: The start, in seconds of a monotonic clock.
    """

    deadlines: Deadlines
    now: float
    _since: float = field(init=False)
    _next: int = field(init=False, default=0)
    _paused_at: float | None = field(init=False, default=None)
    _pauses: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._since = self.now

    def progress(self, now: float) -> None:
        """Restart the silence."""
        self._since = now
        self._next = 0
        if self._paused_at is not None:
            self._paused_at = now

    def pause(self, now: float) -> None:
        """Stop counting silence, since the call waits for its client.

        Pauses may overlap; each has its own `resume`.
        """
        self._pauses += 1
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        """End one pause; after the last one, continue counting silence from where it stopped."""
        self._pauses -= 1
        if self._paused_at is not None and self._pauses == 0:
            self._since += now - self._paused_at
            self._paused_at = None

    def wakes_at(self) -> float:
        """Return the second at which the next rung is reached without progress."""
        total = self.now + self.deadlines.total_s
        if self._paused_at is not None:
            return total
        return min(total, self._since + _rungs(self.deadlines.idle_s)[self._next][0])

    def climb(self, now: float) -> tuple[Rung, ...]:
        """Return the rungs reached since the last call, in order; each is returned once.

        After `IDLE_END` or `TOTAL_END` the call is over, and `climb` must not be called again.
        """
        if now >= self.now + self.deadlines.total_s:
            return (Rung.TOTAL_END,)
        reached: list[Rung] = []
        if self._paused_at is None:
            rungs = _rungs(self.deadlines.idle_s)
            while self._next < len(rungs) and now >= self._since + rungs[self._next][0]:
                reached.append(rungs[self._next][1])
                if rungs[self._next][1] is Rung.IDLE_END:
                    break
                self._next += 1
        return tuple(reached)
