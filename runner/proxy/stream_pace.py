"""How often a client opens the streams of one server: some at once, and then a few in a second.

A server says itself after how many milliseconds a stream that it has ended is opened again, and the SDK does
so for ever: with 0 neither would do anything else.

Source: WHATWG HTML, "Server-sent events", the field `retry`; MCP specification 2025-11-25, "Resumability".
"""

import time
from asyncio import sleep
from dataclasses import dataclass

import httpx2

__all__ = ["StreamPace"]

# One for what a server says on its own, and one for each call that goes on in another stream.
_AT_ONCE = 50
_EACH_S = 0.1


@dataclass(slots=True, eq=False)
class StreamPace:
    """The pace of one client."""

    _next_at: float = float("-inf")

    def wait_s(self, *, now: float) -> float:
        """Count a stream, and return for how many seconds it has to wait; `now` of the monotonic clock."""
        self._next_at = max(self._next_at, now - _AT_ONCE * _EACH_S) + _EACH_S
        return max(0.0, self._next_at - now)

    async def keep(self, request: httpx2.Request) -> None:
        """Hold a request back that opens a stream, if there have been many."""
        if request.method == "GET" and (wait_s := self.wait_s(now=time.monotonic())):
            await sleep(wait_s)
