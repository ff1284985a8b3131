"""Sliding window over the calls of each named limit. Time is an argument.

A call counts towards all its limits or, if one refuses it, towards none.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.contract.error_messages import over_rate
from runner.settings.named_limits import Counted, LimitSettings, counted

__all__ = ["WINDOW_S", "Rates"]

WINDOW_S = 60.0
"""The window of `calls_per_minute`, in seconds."""

# Users without a call in the window are dropped above this number of windows.
_FORGET_ABOVE = 1000

# Name of the limit, and user.
_Key = tuple[str, str]


@dataclass(slots=True, kw_only=True, eq=False)
class Rates:
    """Record of the calls of the last minute, by limit.

    Attributes:
        limits: The limits; a reload replaces them while calls run.
    """

    limits: Mapping[str, LimitSettings] = field(default_factory=dict)
    _calls: "dict[_Key, deque[float]]" = field(init=False, default_factory=dict)

    def of(self, *, tool: str | None, user: str, whose: str) -> Sequence[Counted]:
        """Return the limits that a call counts towards: see `counted`.

        Args:
            tool: Name of its tool; None for other requests.
            user: Name of the user.
            whose: The key under which that user is counted.
        """
        # Most servers have none.
        return tuple(counted(self.limits, tool=tool, user=user, whose=whose)) if self.limits else ()

    def admit(self, mine: Sequence[Counted], *, now: float) -> None:
        """Count one call.

        Args:
            mine: The limits that it counts towards.
            now: Seconds of the monotonic clock.

        Raises:
            CallError: `E_BUSY`; a limit is reached. The error has its name, and when to retry.
        """
        if not mine:
            return
        refusals = list(self._refusals(mine, now))
        if refusals:
            wait_s, one, most = max(refusals, key=lambda refusal: refusal[0])
            raise over_rate(f"call_limits.{one.name}.calls_per_minute", most, wait_s, of_user=bool(one.whose))
        for one in mine:
            if one.limit.calls_per_minute is not None:
                self._window(one, now).append(now)

    def _refusals(self, mine: Sequence[Counted], now: float) -> Iterator[tuple[float, Counted, int]]:
        for one in mine:
            most = one.limit.calls_per_minute
            if most is None:
                continue
            calls = self._window(one, now)
            if len(calls) >= most:
                yield calls[-most] + WINDOW_S - now, one, most

    def _window(self, one: Counted, now: float) -> "deque[float]":
        if len(self._calls) > _FORGET_ABOVE:
            self._calls = {
                key: calls for key, calls in self._calls.items() if calls and calls[-1] > now - WINDOW_S
            }
        calls = self._calls.setdefault((one.name, one.whose), deque())
        while calls and calls[0] <= now - WINDOW_S:
            calls.popleft()
        return calls
