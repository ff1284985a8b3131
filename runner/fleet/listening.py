"""Notifications of a call on a worker node for its client, sent to the client's host.

The node hears its worker for itself, too: for the last thing that a tool said before it fell silent.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.steps.listener import CLIENT_REQUESTS, CallListener

__all__ = ["NOTICE", "Ask", "FarListener", "Say"]

NOTICE = "toolcell/notice"
"""The notification by which a node gives the client of a call a notice."""

Say = Callable[[Mapping[str, Any]], Awaitable[None]]
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, object]]]


@dataclass(slots=True, kw_only=True)
class FarListener(CallListener):
    """Listens to one call on a node.

    Attributes:
        say: Sends the host a notification.
        ask: Asks the host's client something.
    """

    say: Say
    ask: Ask

    async def notify(self, value: Mapping[str, object]) -> None:
        """Send a worker's notification on. What of it a client gets, the host decides."""
        value = self.masked(value)
        await CallListener.notify(self, value)
        await self.say({"method": value.get("method"), "params": value.get("params")})

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a worker's request, or have the client answer it."""
        if value.get("method") not in CLIENT_REQUESTS:
            return await CallListener.request(self, value)
        value = self.masked(value)
        return await self.ask({"method": value["method"], "params": value.get("params")})

    async def tell(self, text: str) -> None:
        """Send a notice to the client through the host."""
        self.notices.append(text)
        await self.say({"method": NOTICE, "params": {"message": text}})
