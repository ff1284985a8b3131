"""Tool calls in a session over HTTP, answered on their own response and not through the session's streams.

The session stays the SDK's: whose it is, what is under way in it, what is cancelled, asked and ended in it. A
call goes on if its client leaves, as the protocol wants, and ends with its session.

Source: MCP specification 2025-11-25, "Streamable HTTP", "Sending messages to the server".
"""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import anyio
import pydantic_core
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from starlette.types import Receive, Scope, Send

from runner.protocol.direct import Answerer, take
from runner.protocol.http_exchange import HttpExchange
from runner.protocol.internals.dispatch import Own
from runner.protocol.internals.http_sessions import HttpSession
from runner.protocol.internals.types import SessionMessage

__all__ = ["answer_in_session"]

_KEYS = frozenset({"jsonrpc", "id", "method", "params"})


def answer_in_session(
    answer: Answerer, session: HttpSession, body: bytes, request: tuple[Scope, Receive, Send]
) -> Awaitable[None] | None:
    """Begin to answer a request in a session, if it is a usual call; return the rest of it, or None.

    Args:
        answer: Answers.
        session: The session.
        body: What the request holds.
        request: The request, as in ASGI.
    """
    asked = _request(body)
    if asked is None:
        return None
    scope, receive, send = request
    named = (b"mcp-session-id", session.id.encode("latin-1"))
    exchange = HttpExchange(
        receive=receive, send=send, ping=_ping, more=[named], is_stream=not session.wants_json
    )
    said = _Said(exchange, session)
    own = Own(stream=said, can_ask=not session.wants_json, settled=said.settled.set)
    return said.wait(request) if take(answer, session.connected, asked, own=own, scope=scope) else None


def _request(body: bytes) -> JSONRPCRequest | None:
    """Return the request that a body is, if it is one and nothing more."""
    try:
        # As the SDK reads it in this era.
        request = pydantic_core.from_json(body)
    except ValueError:
        return None
    if not isinstance(request, dict) or request.keys() != _KEYS or request["jsonrpc"] != "2.0":
        return None
    number, params, method = request["id"], request["params"], request["method"]
    if type(number) not in (int, str) or not isinstance(params, dict) or not isinstance(method, str):
        return None
    return JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)


class _Said:
    """What is said of one request: a stream that the SDK writes messages to.

    Attributes:
        settled: Is set once nothing more will be said.
    """

    def __init__(self, exchange: HttpExchange, session: HttpSession) -> None:
        self._exchange = exchange
        self._session = session
        self._fault: Exception | None = None
        self.settled = asyncio.Event()

    async def send(self, item: SessionMessage) -> None:
        """Pass on a message; of a session that has been ended, nothing more is said."""
        if self._session.is_over:
            raise anyio.ClosedResourceError
        is_last = isinstance(item.message, JSONRPCResponse | JSONRPCError)
        try:
            message = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            if is_last:
                await self._exchange.finish(message)
            elif not self._session.wants_json:
                await self._exchange.tell(message)
        except Exception as error:  # noqa: BLE001 - the request's, which raises it: it must not end the session
            self._fault = error
            self.settled.set()

    async def aclose(self) -> None:
        """Do nothing: the response ends when all is said."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def wait(self, request: tuple[Scope, Receive, Send]) -> None:
        """Wait until all is said, or the client has left."""
        left = False

        def leave() -> None:
            nonlocal left
            left = True
            self.settled.set()

        self._session.hold()
        self._exchange.watch(leave)
        try:
            await self.settled.wait()
            if self._fault is not None:
                raise self._fault
            if not left and not self._exchange.is_over:
                await self._end(request)
        finally:
            self._exchange.unwatch()
            # The call may go on; nobody hears of it.
            self._exchange.is_over = True
            self._session.let_go()

    async def _end(self, request: tuple[Scope, Receive, Send]) -> None:
        """End a response without an answer: its session has been ended."""
        if self._session.wants_json:
            await self._session.ended()(*request)
        else:
            await self._exchange.finish(None)


def _ping() -> bytes:
    # As the library that sends the SDK's events.
    return f": ping - {datetime.now(UTC)}\r\n\r\n".encode()
