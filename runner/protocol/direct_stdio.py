"""Tool calls over stdio, answered without the SDK's tasks and contexts.

It filters the lines read from the client, and passes everything but usual calls to the SDK. The SDK chooses
the era by the first request, so it always gets that one.

Source: MCP specification 2025-11-25 and 2026-07-28, "Transports, stdio".
"""

from types import TracebackType
from typing import Self

import anyio
from mcp_types import JSONRPCMessage, JSONRPCRequest

from runner.protocol.direct import Answerer, take
from runner.protocol.internals.types import SessionMessage
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.protocol.sessions import Outlet

__all__ = ["DirectLines"]


class DirectLines:
    """Received messages, without those that are answered directly.

    Args:
        incoming: All messages.
        outgoing: Takes what the server sends.
        answer: Answers.
    """

    def __init__(self, incoming: IncomingLines, outgoing: OutgoingLines, answer: Answerer) -> None:
        self._incoming = incoming
        self._answer = answer

        async def send(message: JSONRPCMessage) -> None:
            await outgoing.send(SessionMessage(message))

        self._out = Outlet(send=send, can_ask=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            try:
                item = await self._incoming.__anext__()
            except StopAsyncIteration:
                await self._end()
                raise
            if isinstance(item, Exception) or not self._take(item.message):
                return item

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message that is not answered directly.

        Raises:
            anyio.EndOfStream: There are no more.
        """
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        """Take no further line, and end the calls in flight."""
        await self._end()
        await self._incoming.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _take(self, message: JSONRPCMessage) -> bool:
        """Begin to answer a message, if it is a usual call; return whether the SDK is not to get it."""
        session = self._answer.connected(None)
        if session is None or not session.is_open:
            return False
        if isinstance(message, JSONRPCRequest):
            return take(self._answer, session, message, self._out)
        return session.hear(message)

    async def _end(self) -> None:
        session = self._answer.connected(None)
        if session is not None:
            await session.ended()
