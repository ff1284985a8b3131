"""How often one user may call one tool: so many times in any minute. Time is an argument.

It is kept by the identity that the host found, never by what a client says of itself.

Source: document 003, "Auth + rate limits"; requirement S3-141.
"""

from collections import deque
from dataclasses import dataclass, field

from runner.contract.error_messages import too_often

__all__ = ["Throttle"]

_WINDOW_S = 60.0
# Whoever has not called for a minute is forgotten now and then.
_FORGET_ABOVE = 1000


@dataclass(slots=True)
class Throttle:
    """Remembers the calls of the last minute, of tools that have a limit."""

    _calls: "dict[tuple[str, str], deque[float]]" = field(default_factory=dict)

    def admit(self, user: str, tool: str, *, most: int | None, now: float) -> None:
        """Count one call.

        Args:
            user: Whose call it is.
            tool: Name of the tool.
            most: Calls in any minute; None if there is no limit.
            now: Seconds of a clock that never goes back.

        Raises:
            CallError: `E_BUSY`; there were that many already. This one does not count.
        """
        if most is None:
            return
        if len(self._calls) > _FORGET_ABOVE:
            self._calls = {key: calls for key, calls in self._calls.items() if calls[-1] > now - _WINDOW_S}
        calls = self._calls.setdefault((user, tool), deque())
        while calls and calls[0] <= now - _WINDOW_S:
            calls.popleft()
        if len(calls) >= most:
            raise too_often(tool, most, calls[0] + _WINDOW_S - now)
        calls.append(now)
