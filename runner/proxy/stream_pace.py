"""Rate limit of opening the streams of one server.

A server says itself after how many milliseconds a stream that it has ended is opened again, and the SDK does
so for ever: with 0 neither would do anything else.

Source: WHATWG HTML, "Server-sent events", the field `retry`; MCP specification 2025-11-25, "Resumability".
"""

import time
from asyncio import sleep
from dataclasses import dataclass

import httpx2

from sandbox.token_bucket import TokenBucket

__all__ = ["StreamPace"]


@dataclass(slots=True, kw_only=True, eq=False)
class StreamPace(TokenBucket):
    """Rate limit of one client: a stream for what a server says on its own, and one for each resumed call."""

    at_once: float = 50
    per_s: float = 10

    async def keep(self, request: httpx2.Request) -> None:
        """Hold a request back that opens a stream, if there have been many."""
        if request.method == "GET" and (wait_s := self.spend(1, now=time.monotonic())):
            await sleep(wait_s)
