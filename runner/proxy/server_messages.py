"""Messages of a server, bounded in pace and count, as the SDK's client session reads and writes them.

A server may send more than anybody reads, and each message that is passed on takes a moment of everybody's
time. Notifications above the rate limit are dropped and counted, over any transport; `Upstream` reports the
count to the client. A server over lines that does not read the answers to its requests is disconnected.
"""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse

from runner.protocol.internals.proxy import mark_sent
from runner.protocol.internals.types import SessionMessage
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.proxy.stderr import plain_line
from sandbox.token_bucket import TokenBucket

__all__ = ["TOO_MANY_REQUESTS", "AnswerLines", "NotificationPace", "PacedMessages", "ServerLines"]

TOO_MANY_REQUESTS = "it had too many requests of its own open"
"""Reason to disconnect a server that sends requests without end."""

_REPORT_EVERY_S = 1.0
# Answers that the server does not read.
_MOST_ANSWERS = 256
_CANCELLED = "notifications/cancelled"
_SHOWN_CHARS = 100


@dataclass(slots=True, kw_only=True, eq=False)
class NotificationPace(TokenBucket):
    """Rate limit of the notifications of one server. Time is an argument.

    Attributes:
        at_once: Notifications that may come one after the other.
        per_s: Notifications a second afterwards.
        dropped: Number dropped since the last report.
    """

    at_once: float = 1000
    per_s: float = 100
    dropped: int = 0
    _sent_at: float = field(init=False, default=float("-inf"))

    def passes(self, now: float) -> bool:
        """Return whether one more is passed on, and count it either way."""
        passes = self.takes(1, now=now)
        self.dropped += not passes
        return passes

    def report(self, now: float, *, at_last: bool = False) -> int:
        """Return the number to report now; `at_last` also where one was reported a moment ago."""
        if not self.dropped or (not at_last and now - self._sent_at < _REPORT_EVERY_S):
            return 0
        count, self.dropped, self._sent_at = self.dropped, 0, now
        return count


class PacedMessages:
    """Messages of a server without the notifications above the rate limit. A `ReadStream` of the SDK.

    Args:
        pace: The rate limit.
        inner: The messages as they come.
    """

    def __init__(self, pace: NotificationPace, inner: Any) -> None:
        self._pace = pace
        self._inner = inner
        if isinstance(inner, IncomingLines):
            # To read a message takes longer than to drop it.
            inner.sheds = lambda: not pace.has(1, now=time.monotonic())
            inner.shed = self._shed

    def __getattr__(self, name: str) -> Any:
        # The rest of a stream; `last_context`, of the last message's sender; `problem`, if we ended it.
        return getattr(self._inner, name)

    def _shed(self, count: int) -> None:
        self._pace.dropped += count

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._inner:
            message = item.message if isinstance(item, SessionMessage) else None
            if (
                not isinstance(message, JSONRPCNotification)
                or message.method == _CANCELLED
                or self._pace.passes(time.monotonic())
            ):
                yield item

    async def __aenter__(self) -> "PacedMessages":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._inner.__aexit__(*raised)


class ServerLines(IncomingLines):
    """Messages of a server over lines; an unreadable answer becomes an error with the reason."""

    def misframed(self, masked: Callable[[str], str]) -> str | None:
        """Return a sentence about the first line that was not JSON; None if there was none.

        Args:
            masked: Returns a text without the secrets of the server.
        """
        if not self.unreadable:
            return None
        line = plain_line(masked(self.unreadable.decode("utf-8", "replace").strip()))[:_SHOWN_CHARS]
        return (
            f"it wrote '{line}' to its standard output, which is for messages only: MCP requires each to be "
            "JSON on one line, without a header such as Content-Length"
        )

    async def __anext__(self) -> SessionMessage:
        while True:
            item = await super().__anext__()
            if isinstance(item, SessionMessage):
                mark_sent(item.message)
                return item
            if item.id is not None and not item.is_request:
                return SessionMessage(JSONRPCError(jsonrpc="2.0", id=item.id, error=item.error))


class AnswerLines(OutgoingLines):
    """Messages to a server over lines, which is disconnected if too many answers wait.

    Args:
        descriptor: Where they go.

    Attributes:
        incoming: The messages of the server, once they are read.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.incoming: IncomingLines | None = None
        self._waiting = 0

    async def send(self, item: SessionMessage) -> None:
        """Send a message.

        Raises:
            anyio.ClosedResourceError: This side has closed the stream.
            anyio.BrokenResourceError: The other side has.
        """
        is_answer = isinstance(item.message, JSONRPCResponse | JSONRPCError)
        self._waiting += is_answer
        if self._waiting > _MOST_ANSWERS and self.incoming is not None:
            self.incoming.give_up(TOO_MANY_REQUESTS)
        try:
            await super().send(item)
        finally:
            self._waiting -= is_answer
