"""Requests and their answers over lines: what a session with a process of ours speaks through.

It does what the SDK's `JSONRPCDispatcher` does for a client over stdio, without the streams, spans and
copies that one has for each request: together with them they cost as much as the whole guard.

Source: MCP specification 2025-11-25, "Base protocol", "Utilities, Cancellation" and "Utilities, Progress".
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError, RunnerError
from runner.protocol.internals.proxy import Disconnected, UnreadableAnswer
from runner.protocol.internals.types import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    SessionMessage,
    TransportContext,
    coerce_request_id,
    run_notify_intercept,
)
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.protocol.messages import Unreadable
from runner.proxy.notification_pace import DROPPED, NotificationPace
from runner.proxy.remote import FAILURES, TOO_MANY_REQUESTS
from runner.worker.internals.exchange import RelayedExchange

__all__ = ["LineDispatcher"]

log = logging.getLogger(__name__)

# Questions that wait for an answer, and those whose answer the server does not read.
_MOST_REQUESTS = 256
_COURTESY_S = 5.0
_CANCELLED = "notifications/cancelled"
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)
_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request that waits for its answer."""

    answer: "asyncio.Future[dict[str, Any] | ErrorData | Unreadable]"
    progress: ProgressFnT | None


@dataclass(slots=True, eq=False)
class LineDispatcher:
    """One connection. A `mcp.shared.dispatcher.Dispatcher`.

    Attributes:
        incoming: What the server says.
        outgoing: What is said to it.
    """

    incoming: IncomingLines
    outgoing: OutgoingLines
    _pending: dict[RequestId, _Pending] = field(default_factory=dict)
    _serving: dict[RequestId, anyio.CancelScope] = field(default_factory=dict)
    _tasks: anyio.abc.TaskGroup | None = None
    _number: int = 0
    _requests: int = 0
    _end: ErrorData = field(default_factory=lambda: _CLOSED)
    _pace: NotificationPace = field(default_factory=NotificationPace)

    def __post_init__(self) -> None:
        self.incoming.sheds = lambda: not self._pace.has(1, now=time.monotonic())
        self.incoming.shed = self._shed

    def _shed(self, count: int) -> None:
        self._pace.dropped += count

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Take what the server says until it says no more."""
        try:
            async with self.outgoing, anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started()
                async with self.incoming:
                    async for item in self.incoming:
                        if self._requests > _MOST_REQUESTS:
                            log.warning("connection ended: too many requests", extra={"open": self._requests})
                            self._end = _closed(TOO_MANY_REQUESTS)
                            break
                        if isinstance(item, SessionMessage):
                            self._take(item, tasks, on_request, on_notify, on_notify_intercept)
                        elif not item.is_request:
                            self._settle(item.id, item)
                if self.incoming.problem is not None:
                    self._end = _closed(self.incoming.problem)
                self._close()
                tasks.cancel_scope.cancel()
        finally:
            self._close()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            Disconnected: The connection has ended.
            UnreadableAnswer: The answer breaks the protocol.
            MCPError: The server answered with an error, or not in time.
            ValueError: The id is that of another request that waits.
        """
        options: CallOptions = opts or {}
        id_ = options.get("request_id") or self._next()
        if self._tasks is None:
            raise Disconnected(self._end.code, self._end.message)
        if coerce_request_id(id_) in self._pending:
            raise ValueError(f"request id {id_!r} is already in use")
        sent, progress = dict(params or {}), options.get("on_progress")
        if progress is not None:
            sent["_meta"] = {**(sent.get("_meta") or {}), "progressToken": id_}
        pending = _Pending(asyncio.get_running_loop().create_future(), progress)
        self._pending[coerce_request_id(id_)] = pending
        try:
            answer = await self._answer(_request(id_, method, sent), pending, options)
        finally:
            self._pending.pop(coerce_request_id(id_), None)
        if isinstance(answer, Unreadable):
            raise UnreadableAnswer(answer.error.code, answer.error.message)
        if answer is self._end:
            raise Disconnected(self._end.code, self._end.message)
        if isinstance(answer, ErrorData):
            raise MCPError(code=answer.code, message=answer.message, data=answer.data)
        return answer

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification, if the server is still there."""
        members = {} if params is None else {"params": dict(params)}
        with contextlib.suppress(*_GONE):
            await self.outgoing.send(
                SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=method, **members))
            )

    async def _answer(
        self, request: JSONRPCRequest, pending: _Pending, options: CallOptions
    ) -> dict[str, Any] | ErrorData | Unreadable:
        limit_s, courtesy = options.get("timeout"), options.get("cancel_on_abandon", True)
        try:
            with contextlib.nullcontext() if limit_s is None else anyio.fail_after(limit_s):
                await self.outgoing.send(SessionMessage(request))
                return await pending.answer
        except _GONE:
            return self._end
        except TimeoutError:
            await self._abandon(request.id, f"timed out after {limit_s} s", courtesy=courtesy)
            return ErrorData(code=REQUEST_TIMEOUT, message=f"Request {request.method!r} timed out")
        except asyncio.CancelledError:
            await self._abandon(request.id, "caller cancelled", courtesy=courtesy)
            raise

    async def _abandon(self, id_: RequestId, reason: str, *, courtesy: bool) -> None:
        """Notify the server that an answer is no longer awaited."""
        if courtesy and self._tasks is not None:
            with anyio.move_on_after(_COURTESY_S, shield=True):
                await self.notify(_CANCELLED, {"requestId": id_, "reason": reason})

    def _take(
        self,
        item: SessionMessage,
        tasks: anyio.abc.TaskGroup,
        on_request: OnRequest,
        on_notify: OnNotify,
        intercept: OnNotifyIntercept | None,
    ) -> None:
        match item.message:
            case JSONRPCResponse(id=id_, result=result):
                self._tell_of_dropped(tasks, on_notify, at_last=self._is_awaited(id_))
                self._settle(id_, result)
            case JSONRPCError(id=id_, error=error):
                self._tell_of_dropped(tasks, on_notify, at_last=self._is_awaited(id_))
                self._settle(id_, error)
            case JSONRPCRequest() as request:
                self._requests += 1
                tasks.start_soon(self._serve, request, on_request)
            case JSONRPCNotification(method=method, params=params):
                if method != _CANCELLED and not self._pace.passes(time.monotonic()):
                    return
                if method == DROPPED:
                    # That is said here, and by no server.
                    return
                self._tell_of_dropped(tasks, on_notify, at_last=False)
                self._apply(method, params or {}, tasks)
                if not run_notify_intercept(intercept, method, params):
                    tasks.start_soon(_contained, partial(on_notify, self._exchange(None), method, params))

    def _tell_of_dropped(self, tasks: anyio.abc.TaskGroup, on_notify: OnNotify, *, at_last: bool) -> None:
        """Pass on that notifications were dropped; before an answer, since nobody listens after it."""
        count = self._pace.tell(time.monotonic(), at_last=at_last)
        if count:
            facts = {"count": count}
            tasks.start_soon(_contained, partial(on_notify, self._exchange(None), DROPPED, facts))

    def _is_awaited(self, id_: RequestId | None) -> bool:
        # Any number of answers may come that nobody asked for.
        return id_ is not None and coerce_request_id(id_) in self._pending

    def _settle(self, id_: RequestId | None, answer: dict[str, Any] | ErrorData | Unreadable) -> None:
        pending = None if id_ is None else self._pending.get(coerce_request_id(id_))
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)

    def _apply(self, method: str, params: Mapping[str, Any], tasks: anyio.abc.TaskGroup) -> None:
        """Let a notification take effect on what is under way: a progress report, or a cancellation."""
        named = params.get("requestId" if method == _CANCELLED else "progressToken")
        if not isinstance(named, str | int) or isinstance(named, bool):
            return
        key = coerce_request_id(named)
        if method == _CANCELLED and key in self._serving:
            self._serving[key].cancel()
        pending = self._pending.get(key) if method == "notifications/progress" else None
        done, message = _number(params.get("progress")), params.get("message")
        if pending is not None and pending.progress is not None and done is not None:
            words = message if isinstance(message, str) else None
            report = partial(pending.progress, done, _number(params.get("total")), words)
            tasks.start_soon(_contained, report)

    async def _serve(self, request: JSONRPCRequest, on_request: OnRequest) -> None:
        """Answer a request of the server, unless it cancels it."""
        key = coerce_request_id(request.id)
        with anyio.CancelScope() as scope:
            self._serving[key] = scope
            try:
                result = await on_request(self._exchange(request.id), request.method, request.params)
                answer: JSONRPCResponse | JSONRPCError = JSONRPCResponse(
                    jsonrpc="2.0", id=request.id, result=result
                )
            except MCPError as error:
                answer = JSONRPCError(jsonrpc="2.0", id=request.id, error=error.error)
            except Exception as error:  # noqa: BLE001 - one request that fails must not end the connection
                failure = error if isinstance(error, CallError) else unexpected(error)
                problem = ErrorData(code=INTERNAL_ERROR, message=failure.message)
                answer = JSONRPCError(jsonrpc="2.0", id=request.id, error=problem)
            finally:
                self._serving.pop(key, None)
            with contextlib.suppress(*_GONE):
                await self.outgoing.send(SessionMessage(answer))
        self._requests -= 1

    def _exchange(self, id_: RequestId | None) -> RelayedExchange:
        return RelayedExchange(
            request_id=id_,
            can_send_request=True,
            transport=TransportContext(kind="stdio", can_send_request=True),
            message_metadata=None,
            on_notify=self.notify,
            on_request=self.send_raw_request,
        )

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _close(self) -> None:
        self._tasks = None
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_result(self._end)


def _closed(problem: str) -> ErrorData:
    return ErrorData(code=CONNECTION_CLOSED, message=f"Connection closed: {problem}")


def _request(id_: RequestId, method: str, params: dict[str, Any]) -> JSONRPCRequest:
    # Absent, not null: the protocol knows no null here.
    return (
        JSONRPCRequest(jsonrpc="2.0", id=id_, method=method, params=params)
        if params
        else JSONRPCRequest(jsonrpc="2.0", id=id_, method=method)
    )


async def _contained(act: Callable[[], Awaitable[None]]) -> None:
    """Pass something on; a receiver that is gone is not a fault of the connection."""
    try:
        await act()
    except (*FAILURES, RunnerError) as error:
        log.info("not passed on", extra={"problem": str(error)[:200]})
    except Exception:
        # A bug of ours; one notification must not end the connection of all calls.
        log.exception("notification not forwarded")


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
