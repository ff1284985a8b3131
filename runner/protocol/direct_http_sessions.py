"""Tool calls in a session over HTTP, answered on their own response and not through the session's streams.

The SDK keeps the session, and ends it when it has served no request for a while. It does not see the calls
here, so it is sent a ping in the session from time to time. A call continues if its client disconnects, as
the protocol requires, and ends with its session.

Source: MCP specification 2025-11-25, "Streamable HTTP", "Sending messages to the server".
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import pydantic_core
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
)
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runner.protocol.direct import Answerer, take
from runner.protocol.http_exchange import HttpExchange
from runner.protocol.sessions import LiveSession, Outlet

__all__ = ["HttpSession", "answer_in_session"]

_ENDED = "Session terminated before the request completed"
_KEYS = frozenset({"jsonrpc", "id", "method", "params"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSession:
    """One session, at the time of one request.

    Attributes:
        id: Of the session.
        live: What is in flight in it.
        wants_json: Whether each answer is one body of JSON, and no message comes before it.
        idle_s: How long the SDK keeps a session in which it serves no request, if it ends any.
        ping: Has the SDK serve a request in it.
    """

    id: str
    live: LiveSession
    wants_json: bool
    idle_s: float | None
    ping: Callable[[], Awaitable[None]]

    @property
    def ping_in_s(self) -> float | None:
        """In how many seconds the SDK has to see a request, if it ends idle sessions."""
        if self.idle_s is None:
            return None
        return max(0.0, self.live.seen_at + self.idle_s / 4 - time.monotonic())


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
    received = _request(body)
    if received is None:
        return None
    scope, receive, send = request
    named = (b"mcp-session-id", session.id.encode("latin-1"))
    exchange = HttpExchange(
        receive=receive, send=send, ping=_ping, more=[named], is_stream=not session.wants_json
    )
    sender = _Said(exchange, session)
    out = Outlet(
        send=sender.send, can_ask=not session.wants_json, has_own_response=True, settled=sender.settled.set
    )
    return sender.wait(request) if take(answer, session.live, received, out, scope=scope) else None


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
    """Messages of one request: a stream that the SDK writes to.

    Attributes:
        settled: Is set once nothing more will be said.
    """

    def __init__(self, exchange: HttpExchange, session: HttpSession) -> None:
        self._exchange = exchange
        self._session = session
        self._fault: Exception | None = None
        self.settled = asyncio.Event()

    async def send(self, item: JSONRPCMessage) -> None:
        """Pass on a message, unless the session has ended."""
        if not self._session.live.is_open:
            raise anyio.ClosedResourceError
        is_last = isinstance(item, JSONRPCResponse | JSONRPCError)
        try:
            message = item.model_dump_json(by_alias=True, exclude_unset=True).encode()
            if is_last:
                await self._exchange.finish(message)
            elif not self._session.wants_json:
                await self._exchange.tell(message)
        except Exception as error:  # noqa: BLE001 - the request's, which raises it: it must not end the session
            self._fault = error
            self.settled.set()

    async def wait(self, request: tuple[Scope, Receive, Send]) -> None:
        """Wait until everything is sent, or the client has disconnected."""
        left = False

        def leave() -> None:
            nonlocal left
            left = True
            self.settled.set()

        self._exchange.watch(leave)
        try:
            await self._settled()
            if self._fault is not None:
                raise self._fault
            if not left and not self._exchange.is_over:
                await self._end(request)
        finally:
            self._exchange.unwatch()
            # The call may go on; nobody hears of it.
            self._exchange.is_over = True

    async def _settled(self) -> None:
        """Wait until everything is sent, and mark the session as in use for the SDK meanwhile."""
        while not self.settled.is_set():
            try:
                async with asyncio.timeout(self._session.ping_in_s):
                    await self.settled.wait()
            except TimeoutError:
                await self._session.ping()

    async def _end(self, request: tuple[Scope, Receive, Send]) -> None:
        """End a response without an answer: its session has been ended."""
        if self._session.wants_json:
            error = ErrorData(code=INTERNAL_ERROR, message=_ENDED)
            ended = JSONRPCError(jsonrpc="2.0", id=None, error=error)
            body = ended.model_dump_json(by_alias=True, exclude_unset=True)
            await Response(body, 500, media_type="application/json")(*request)
        else:
            await self._exchange.finish(None)


def _ping() -> bytes:
    # As the library that sends the SDK's events.
    return f": ping - {datetime.now(UTC)}\r\n\r\n".encode()
