"""Rate limit with a burst and a rate, for workers, clients and servers."""

from dataclasses import dataclass, field

__all__ = ["TokenBucket"]


@dataclass(slots=True, kw_only=True, eq=False)
class TokenBucket:
    """A token bucket. Time is an argument: the monotonic clock in seconds.

    Attributes:
        at_once: Its capacity and initial number of tokens.
        per_s: Tokens added in each second.
    """

    at_once: float
    per_s: float
    _left: float = field(init=False)
    _at: float = field(init=False, default=float("inf"))

    def __post_init__(self) -> None:
        self._left = self.at_once

    def fill(self) -> None:
        """Fill it at once."""
        self._left = self.at_once

    def has(self, amount: float, *, now: float) -> bool:
        """Return whether it holds at least `amount` tokens."""
        self._left = min(self.at_once, self._left + max(0.0, now - self._at) * self.per_s)
        self._at = now
        return amount <= self._left

    def takes(self, amount: float, *, now: float) -> bool:
        """Take `amount` tokens if it holds them; return whether it did."""
        if not self.has(amount, now=now):
            return False
        self._left -= amount
        return True

    def spend(self, amount: float, *, now: float) -> float:
        """Take `amount` tokens, going into debt if needed; return the seconds to wait."""
        self.has(0, now=now)
        self._left -= amount
        return max(0.0, -self._left / self.per_s)

    def rest_s(self, *, now: float) -> float:
        """Return the seconds until its debt is paid."""
        return 0.0 if self.has(0, now=now) else -self._left / self.per_s
