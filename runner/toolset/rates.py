"""Named limits by minute, hour or day, and limits of a tool. Time is an argument.

A call is counted for all its limits or, where one refuses it, for none. Its processor time and its files are
known when it has ended, so the calls under way at the limit still end in order.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.contract.error_messages import over_rate
from runner.settings.named_limits import Counted, LimitSettings, counted
from sandbox.policy import MIB

__all__ = ["RATES", "Rate", "Rates"]


class Rate(NamedTuple):
    """In what time so much is allowed, and how finely it is remembered.

    Attributes:
        window_s: The time, in seconds.
        step_s: What was used within so many seconds is one number: of any number of calls, few are left.
    """

    window_s: float
    step_s: float = 0.0


RATES = {
    "calls_per_minute": Rate(60.0),
    "cpu_s_per_hour": Rate(3600.0, step_s=60.0),
    "stored_mb_per_day": Rate(24 * 3600.0, step_s=600.0),
}
"""By the name that each has in `LimitSettings`."""

# Whoever has used nothing within the window is forgotten now and then.
_FORGET_ABOVE = 1000

# Setting, name of the limit, whose.
_Key = tuple[str, str, str]


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
    """Counters of named limits.

    Attributes:
        limits: The limits; others may come in their place while calls run.
        told: Hears of what each call has used, where that is counted elsewhere.
    """

    limits: Mapping[str, LimitSettings] = field(default_factory=dict)
    told: "Callable[[Sequence[Counted], str, float], None] | None" = None
    _used: dict[_Key, _Window] = field(init=False, default_factory=dict)

    def of(
        self, *, tool: str | None, user: str, whose: str, memory_mb: Callable[[], int] = int
    ) -> Sequence[Counted]:
        """Return the limits that a call counts for: see `counted`.

        Args:
            tool: Name of its tool; None for other requests.
            user: Name of who calls.
            whose: What that user is counted by.
            memory_mb: Says what the call may have of memory, in MiB; asked only where there are limits.
        """
        # Most servers have none.
        if not self.limits:
            return ()
        return tuple(counted(self.limits, tool=tool, user=user, whose=whose, memory_mb=memory_mb()))

    def admit(self, mine: Sequence[Counted], *, now: float) -> None:
        """Count one call.

        Args:
            mine: The limits that it counts for.
            now: Seconds of a clock that never goes back.

        Raises:
            CallError: `E_BUSY`; one of them is reached. The error says which, and when to come back.
        """
        if not mine:
            return
        refusals = list(self._refusals(mine, now))
        if refusals:
            wait_s, one, setting, most = max(refusals, key=lambda refusal: refusal[0])
            raise over_rate(f"call_limits.{one.name}.{setting}", most, wait_s, of_user=bool(one.whose))
        self._add(mine, "calls_per_minute", 1, now=now)

    def spend(self, mine: Sequence[Counted], setting: str, amount: float, *, now: float) -> None:
        """Add what a call has used.

        Args:
            mine: The limits that it counts for.
            setting: What it is, by the name in `RATES`.
            amount: How much, in the unit of the setting.
            now: As for `admit`.
        """
        if amount <= 0 or not any(getattr(one.limit, setting) for one in mine):
            return
        if self.told is not None:
            self.told(mine, setting, amount)
        else:
            self._add(mine, setting, amount, now=now)

    def keeps(self, mine: Sequence[Counted]) -> Callable[[int], None]:
        """Return what counts the bytes of each file that a call keeps."""

        def count(size: int) -> None:
            self.spend(mine, "stored_mb_per_day", size / MIB, now=time.monotonic())

        return count

    def _add(self, mine: Sequence[Counted], setting: str, amount: float, *, now: float) -> None:
        for one in mine:
            if getattr(one.limit, setting) is not None:
                self._of(setting, one, now).add(amount, now=now, step_s=RATES[setting].step_s)

    def _refusals(self, mine: Sequence[Counted], now: float) -> Iterator[tuple[float, Counted, str, int]]:
        for one in mine:
            for setting in RATES:
                most: int | None = getattr(one.limit, setting)
                if most is not None:
                    wait_s = self._of(setting, one, now).wait_s(most, now=now)
                    if wait_s > 0:
                        yield wait_s, one, setting, most

    def _of(self, setting: str, one: Counted, now: float) -> _Window:
        return self._window((setting, one.name, one.whose), RATES[setting].window_s, now)

    def _window(self, key: _Key, length_s: float, now: float) -> _Window:
        if len(self._used) > _FORGET_ABOVE:
            idle = [each for each, known in self._used.items() if known.forget(now)]
            for each in idle:
                del self._used[each]
        return self._used.setdefault(key, _Window(length_s))
