"""How many calls a minute, and how much of the processor an hour, limits by name allow. Time is an argument.

A call is counted for all its limits or, where one refuses it, for none. Its processor time is known when it
has ended, so the calls under way at the limit still end in order.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.contract.error_messages import over_rate
from runner.settings.named_limits import Counted, LimitSettings, counted

__all__ = ["Rates"]

MINUTE_S = 60.0
HOUR_S = 3600.0
# Processor time is added up by the minute: an hour of any number of calls is so many numbers.
_STEP_S = 60.0
# Whoever has used nothing within the window is forgotten now and then.
_FORGET_ABOVE = 1000

_Key = tuple[str, str]


@dataclass(slots=True)
class _Window:
    """Amounts over the last seconds, the oldest first."""

    length_s: float
    parts: "deque[tuple[float, float]]" = field(default_factory=deque)
    total: float = 0.0

    def add(self, amount: float, *, now: float, step_s: float = 0.0) -> None:
        self.total += amount
        if self.parts and now - self.parts[-1][0] < step_s:
            at, before = self.parts.pop()
            self.parts.append((at, before + amount))
        else:
            self.parts.append((now, amount))

    def wait_s(self, most: float, *, now: float) -> float:
        """Return after how long there will be less than `most` in it; 0 if there is now."""
        self.forget(now)
        left, wait_s = self.total, 0.0
        for at, amount in self.parts:
            if left < most:
                break
            left -= amount
            wait_s = at + self.length_s - now
        return wait_s

    def forget(self, now: float) -> bool:
        """Let go of what is older than the window; say whether nothing is left."""
        while self.parts and self.parts[0][0] <= now - self.length_s:
            self.total -= self.parts.popleft()[1]
        if not self.parts:
            # What adding and taking away of fractions has left.
            self.total = 0.0
        return not self.parts


@dataclass(slots=True, kw_only=True, eq=False)
class Rates:
    """What has been counted for limits by name.

    Attributes:
        limits: The limits; others may come in their place while calls run.
        told: Hears of the processor time of each call, where it is counted elsewhere.
    """

    limits: Mapping[str, LimitSettings] = field(default_factory=dict)
    told: "Callable[[Sequence[Counted], float], None] | None" = None
    _calls: dict[_Key, _Window] = field(init=False, default_factory=dict)
    _cpu: dict[_Key, _Window] = field(init=False, default_factory=dict)

    def of(self, *, tool: str | None, user: str, whose: str) -> Sequence[Counted]:
        """Return the limits that a call counts for: see `counted`."""
        return tuple(counted(self.limits, tool=tool, user=user, whose=whose)) if self.limits else ()

    def admit(self, mine: Sequence[Counted], *, now: float) -> None:
        """Count one call.

        Args:
            mine: The limits that it counts for.
            now: Seconds of a clock that never goes back.

        Raises:
            CallError: `E_BUSY`; one of them is reached. The error says which, and when to come back.
        """
        refusals = list(self._refusals(mine, now))
        if refusals:
            wait_s, one, setting, most = max(refusals, key=lambda refusal: refusal[0])
            raise over_rate(f"call_limits.{one.name}.{setting}", most, wait_s, of_user=bool(one.whose))
        for one in mine:
            if one.limit.calls_per_minute is not None:
                _window(self._calls, one, MINUTE_S, now).add(1, now=now)

    def spend(self, mine: Sequence[Counted], cpu_s: float, *, now: float) -> None:
        """Add the processor time of a call that has ended, in seconds."""
        if self.told is not None:
            self.told(mine, cpu_s)
            return
        for one in mine:
            if one.limit.cpu_s_per_hour is not None and cpu_s > 0:
                _window(self._cpu, one, HOUR_S, now).add(cpu_s, now=now, step_s=_STEP_S)

    def _refusals(self, mine: Sequence[Counted], now: float) -> Iterator[tuple[float, Counted, str, int]]:
        for one in mine:
            rates = (
                (self._calls, MINUTE_S, "calls_per_minute", one.limit.calls_per_minute),
                (self._cpu, HOUR_S, "cpu_s_per_hour", one.limit.cpu_s_per_hour),
            )
            for windows, length_s, setting, most in rates:
                if most is not None:
                    wait_s = _window(windows, one, length_s, now).wait_s(most, now=now)
                    if wait_s > 0:
                        yield wait_s, one, setting, most


def _window(windows: dict[_Key, _Window], one: Counted, length_s: float, now: float) -> _Window:
    if len(windows) > _FORGET_ABOVE:
        idle = [key for key, known in windows.items() if known.forget(now)]
        for key in idle:
            del windows[key]
    return windows.setdefault((one.name, one.whose), _Window(length_s))
