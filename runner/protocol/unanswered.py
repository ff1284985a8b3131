"""The requests of a client on stdio that have no answer yet.

Over HTTP each response belongs to a request, and the web server waits for open ones. On stdio nothing tracks
them, and a process that exits would lose its unsent answers.
"""

import asyncio
from dataclasses import dataclass, field

from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

__all__ = ["Unanswered"]


# What is answered when it ends, which is for its client to decide.
_UNENDING = ("subscriptions/listen",)


@dataclass(slots=True, eq=False)
class Unanswered:
    """Knows which requests have no answer yet."""

    _requests: set[str] = field(init=False, default_factory=set)
    _none: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def received(self, message: JSONRPCMessage) -> None:
        """Note a request of the client, or that it wants no answer to one any more."""
        if isinstance(message, JSONRPCRequest) and message.method not in _UNENDING:
            self._requests.add(str(message.id))
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.answered((message.params or {}).get("requestId"))

    def answered(self, request_id: object) -> None:
        """Record that a request, if it is one, needs no answer any more."""
        self._requests.discard(str(request_id))
        if not self._requests:
            self._none.set()

    def __bool__(self) -> bool:
        return bool(self._requests)

    async def none(self, within_s: float) -> None:
        """Wait until there are none, for so many seconds at most: the client may never read them."""
        if self._requests:
            self._none.clear()
            waiter = asyncio.create_task(self._none.wait())
            await asyncio.wait({waiter}, timeout=within_s)
            waiter.cancel()
