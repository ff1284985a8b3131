"""Tool calls of the modern era over stdio, answered without the SDK's tasks and contexts.

It stands between the lines that come in and the SDK, which gets all that is no usual call. The SDK decides
by the first request whether a client speaks the modern era; so nothing is taken before it has got one.

Source: MCP specification 2026-07-28, "Transports, stdio" and "Cancellation".
"""

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from runner.direct import Answer, DirectCall, is_traced, is_usual
from runner.internals.answer import error_reply
from runner.internals.connection import opens_modern
from runner.lines import IncomingLines, OutgoingLines

__all__ = ["DirectLines"]

_LAST_WORDS_S = 1.0
_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")


class DirectLines:
    """Messages that come in, without those that are answered directly.

    Args:
        incoming: All messages.
        outgoing: Where answers go.
        answer: Answers.
    """

    def __init__(self, incoming: IncomingLines, outgoing: OutgoingLines, answer: Answer) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._answer = answer
        self._is_modern: bool | None = None
        self._running: dict[str, asyncio.Task[None]] = {}

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
            return await self._incoming.receive()

    async def aclose(self) -> None:
        """Take no more; calls under way are cancelled."""
        await self._incoming.aclose()
        await self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _take(self, message: JSONRPCMessage) -> bool:
        """Begin to answer a message, if it is a usual call."""
        if isinstance(message, JSONRPCNotification):
            self._cancelled(message)
            return False
        if not isinstance(message, JSONRPCRequest):
            return False
        if not self._is_modern:
            if self._is_modern is None:
                self._is_modern = opens_modern(message)
            return False
        # As the SDK has it, a number and the text of it are one id.
        known = str(message.id)
        params = message.params
        if message.method != "tools/call" or params is None or not is_usual(params) or is_traced():
            return False
        if known in self._running or not self._answer.takes(params["name"]):
            return False
        task = asyncio.create_task(self._serve(message.id, params))
        self._running[known] = task
        task.add_done_callback(lambda done: self._forget(known, done))
        return True

    def _forget(self, known: str, done: "asyncio.Task[None]") -> None:
        # Another call may have taken the id of one that was cancelled.
        if self._running.get(known) is done:
            del self._running[known]

    async def _serve(self, number: str | int, params: dict[str, Any]) -> None:
        call = DirectCall(id=number, params=params, notify=self._notify)
        reply: JSONRPCResponse | JSONRPCError
        try:
            reply = JSONRPCResponse(jsonrpc="2.0", id=number, result=await self._answer.answer(call))
        except asyncio.CancelledError:
            # What the client has cancelled is never answered; what ends with the connection is, in time.
            if str(number) in self._running:
                with anyio.move_on_after(_LAST_WORDS_S):
                    await self._send(JSONRPCError(jsonrpc="2.0", id=number, error=_CLOSED))
            raise
        except Exception as error:  # noqa: BLE001 - told to the client, and logged, as the SDK would
            reply = JSONRPCError.model_validate(error_reply(number, error)[0])
        await self._send(reply)

    async def _notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self._send(JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params)))

    async def _send(self, message: JSONRPCMessage) -> None:
        # A client that takes no more of what is said has left; that its input ends will be heard too.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._outgoing.send(SessionMessage(message))

    def _cancelled(self, message: JSONRPCNotification) -> None:
        if message.method == "notifications/cancelled":
            task = self._running.pop(str((message.params or {}).get("requestId")), None)
            if task is not None:
                task.cancel()

    async def _end(self) -> None:
        left = dict(self._running)
        for task in left.values():
            task.cancel()
        if left:
            await asyncio.wait(left.values())
