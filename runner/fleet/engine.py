"""Executor of a host whose calls run on worker nodes: sends each call to its user's node, and watches it.

The host that has a client's request owns the call. Before its code runs, a node deletes the key `begin` of
the call; only one process can delete it. When a node falls silent, the host deletes it: if it was still
there, the call has not begun and never will, and another node gets it. If not, the call is repeated only if
its tool declares that this does no harm.

Source: `docs/decisions/0044-fleet-over-redis.md`; MCP, tool annotations, `idempotentHint`.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from runner.contract.error_messages import crashed, invalid_result
from runner.errors import CallError, Code
from runner.fleet.connection import (
    FENCE_S,
    HOST_TTL_S,
    HOUR_MS,
    REDIS_FAILURES,
    FleetConnection,
    leave_if_cancelled,
    problem_of,
    redis_key,
)
from runner.fleet.messages import NOTICE, Answer, Cancel, NodeMessage, NodeStatus, SentCall, SessionEnd
from runner.fleet.placing import node_of
from runner.fleet.release import release_of
from runner.fleet.results import Ended, completed_of, read_ended
from runner.fleet.shared_events import SharedEvents
from runner.fleet.shared_sessions import SharedSessions
from runner.steps.listener import CLIENT_REQUESTS, CallListener
from runner.steps.request import Completed, Request
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset
from runner.worker.wire import WireError

__all__ = ["FleetEngine"]

log = logging.getLogger(__name__)

_WATCH_S = 0.5
_RENEW_S = 2.0
# Looks in a row that Redis has answered, `_WATCH_S` apart; and status messages of a node, a second apart.
_MOST_ABSENT = 3
_MOST_UNLISTED = 10
_TRIES = 4
_PATIENCE_S = 10.0
_MOST_MESSAGES = 1000
_RETRY_AFTER_S = 5


class Again(Exception):
    """A call must be sent to a node again: its code has not started, or it is idempotent."""


class Gone(Exception):
    """A call started, or may have, and its outcome is lost; the message is the reason."""


@dataclass(slots=True, kw_only=True, eq=False)
class RemoteCall:
    """One call at one node. A call that is sent again is another one, with another id.

    Attributes:
        request: The request.
        is_idempotent: Whether it may run twice.
        id: Its id in the fleet.
        node: Its node, once there is one.
        waits: Whether it has no node yet, or waits at its node for its turn.
        has_started: Whether its code has started, as far as the host knows.
        dropped: Number of notifications that its client did not take in time.
        received: Messages of the node, or the reason why there will be none.
    """

    request: Request
    is_idempotent: bool
    id: str = field(init=False)
    node: str | None = None
    waits: bool = True
    has_started: bool = False
    dropped: int = 0
    _beat: int = -1
    _missed: int = 0
    received: "asyncio.Queue[NodeMessage | Exception]" = field(
        default_factory=lambda: asyncio.Queue(_MOST_MESSAGES)
    )

    def __post_init__(self) -> None:
        self.id = f"{self.request.id}.{secrets.token_hex(4)}"

    def receive(self, message: NodeMessage | Exception) -> None:
        """Queue a message of the node, or the reason why there will be none."""
        if isinstance(message, NodeMessage) and message.kind == "note":
            if self.received.qsize() >= _MOST_MESSAGES // 2:
                # Notifications that a client does not read must leave room for the end of its call.
                self.dropped += 1
                return
        elif self.received.full():
            self.received.get_nowait()
        self.received.put_nowait(message)

    def missed_in(self, status: NodeStatus) -> int:
        """Update from a status of its node; return the number of statuses in a row without this call."""
        has_started = status.calls.get(self.id)
        self.has_started |= has_started is True
        self.waits = has_started is False
        if has_started is not None:
            self._missed = 0
        elif status.beat != self._beat:
            # A Redis without memory keeps an old one.
            self._missed += 1
        self._beat = status.beat
        return self._missed


@dataclass(slots=True, kw_only=True, eq=False)
class FleetEngine:
    """Executor of calls on worker nodes. A `RemoteExecutor`.

    Attributes:
        toolset: The tools; its own workers only list them.
        connection: The connection to Redis.
        release: The release that this host serves.
        host: Name of this host in the fleet.
        lasting: Tasks that run as long as the host: they read messages, and watch nodes.
        sessions: The sessions that files end with; None where files persist.
        calls: The requests at nodes, or on their way to one, by their ids in the fleet.
    """

    toolset: Toolset
    connection: FleetConnection
    release: str
    host: str = field(default_factory=lambda: f"host-{secrets.token_hex(6)}")
    lasting: "Sequence[asyncio.Task[None]]" = ()
    sessions: SharedSessions | None = None
    calls: dict[str, RemoteCall] = field(default_factory=dict)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    # Nodes that accept calls, with how many; and in how many looks in a row a node was not there.
    _nodes: dict[str, int] = field(default_factory=dict)
    _absent: dict[str, int] = field(default_factory=dict)
    _fault: str | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, toolset: Toolset) -> AsyncIterator["FleetEngine"]:
        """Execute the calls of a toolset in the fleet of its settings, until the block ends.

        Raises:
            UsageError: The settings do not say which, or Redis cannot be used.
        """
        release = release_of(toolset.targets)
        async with FleetConnection.open(toolset.settings) as connection:
            engine = cls(toolset=toolset, connection=connection, release=release)
            log.info("fleet host started", extra={"host": engine.host, "release": release})
            if not toolset.library.persist:
                engine.sessions = SharedSessions(redis=connection.blocking())
                toolset.share(engine.sessions)
            shared = SharedEvents(connection=connection, events=toolset.events, source=engine.host)
            lasting = engine.lasting = [
                asyncio.create_task(
                    connection.consume(engine.host, NodeMessage.model_validate, engine._receive)
                ),
                asyncio.create_task(engine._watch()),
            ]
            try:
                async with shared.shared(subscribe=True):
                    yield engine
            finally:
                if engine._ending:
                    await asyncio.wait(engine._ending, timeout=2 * FENCE_S)
                for task in (*lasting, *engine._ending):
                    task.cancel()
                await asyncio.wait((*lasting, *engine._ending))
                with contextlib.suppress(*REDIS_FAILURES):
                    await connection.redis.delete(
                        redis_key("stream", engine.host), redis_key("host", engine.host)
                    )

    def waiting(self) -> int:
        """Return the number of requests of this host without a node, or waiting at their node."""
        return sum(call.waits for call in self.calls.values())

    async def faults(self) -> Mapping[str, str]:
        """Return the reason why calls cannot be taken now, if it is the fleet's fault."""
        return {} if self._fault is None else {"fleet": self._fault}

    async def end_session(self, session: str) -> None:
        """End the background work of a session on every node."""
        with contextlib.suppress(*REDIS_FAILURES):
            for node in tuple(self._nodes):
                await self.connection.send(node, SessionEnd(session=session))

    async def call(self, request: Request, spec: ToolSpec, listener: CallListener) -> Completed:
        """Execute a tool call. See `RemoteExecutor`."""
        ended = await self._ended(request, listener, is_idempotent=spec.is_idempotent)
        request.steps.done("run")
        files = self.toolset.files(request.user, trace=request.id)
        completed = await completed_of(ended, request, spec, files, is_observed=bool(self.toolset.observers))
        request.steps.done("collect")
        return completed

    async def relay(self, request: Request, listener: CallListener) -> Mapping[str, Any]:
        """Answer any other request. See `RemoteExecutor`."""
        ended = await self._ended(request, listener, is_idempotent=True)
        if ended.wire_error is not None:
            raise WireError(ended.wire_error)
        if ended.failure is not None:
            raise ended.error()
        if ended.answer is None:
            raise invalid_result("the worker node", "it did not send an answer")
        return ended.answer

    async def _ended(self, request: Request, listener: CallListener, *, is_idempotent: bool) -> Ended:
        """Send a request to a node, and return its end; send it again where that does no harm.

        Raises:
            CallError: It could not begin, or its end will never be known.
        """
        avoided = None
        for _ in range(_TRIES):
            call = RemoteCall(request=request, is_idempotent=is_idempotent)
            self.calls[call.id] = call
            is_over = False
            try:
                call.node = await self._place(call, avoided)
                request.steps.done("place")
                await self._send(call, call.node)
                ended = await self._end_of(call, call.node, listener)
                is_over = True
            except Again as reason:
                facts = {"call": call.id, "node": call.node, "reason": str(reason)}
                log.warning("call placed again", extra=facts)
                avoided = call.node
            except Gone as reason:
                error = crashed(None, cause=str(reason))
                error.details["begun"] = True
                raise error from reason
            else:
                return ended
            finally:
                del self.calls[call.id]
                if not is_over:
                    # The waiter for the answer does not wait for this.
                    ending = asyncio.create_task(self._abandon(call))
                    self._ending.add(ending)
                    ending.add_done_callback(self._ending.discard)
        raise _not_sent("no worker node took it")

    async def _place(self, call: RemoteCall, avoided: str | None) -> str:
        """Return the node of the call's user, who stays there while the node accepts calls.

        Raises:
            CallError: `E_BUSY`: there is no node, or Redis does not answer.
        """
        redis, key = self.connection.redis, redis_key("user", self.release, call.request.user.segment)
        stay_ms = int(self.toolset.settings.session_idle_s * 1000)
        ends = time.monotonic() + _PATIENCE_S
        while True:
            refusal = _busy(
                f"No worker node serves this version ({self.release}) now",
                "For the operator: start `runner worker` with the same tool files and version",
            )
            # Where there is no other node, it may take the call after a while.
            nodes = {name: most for name, most in self._nodes.items() if name != avoided}
            best, avoided = node_of(call.request.user.segment, nodes), None
            try:
                if best is not None:
                    async with redis.pipeline() as whole:
                        whole.set(redis_key("begin", call.id), "", px=HOUR_MS)
                        whole.set(key, best, nx=True, px=stay_ms)
                        whole.pexpire(key, stay_ms)
                        whole.get(key)
                        *_, found = await whole.execute()
                    node = found.decode() if isinstance(found, bytes) else ""
                    if node not in nodes:
                        node = best
                        await redis.set(key, node, px=stay_ms)
                    return node
            except ResponseError as error:
                raise _not_sent(problem_of(error)) from error
            except REDIS_FAILURES as error:
                refusal = _not_sent(problem_of(error))
            if time.monotonic() > ends:
                raise refusal
            await asyncio.sleep(_WATCH_S)

    async def _send(self, call: RemoteCall, node: str) -> None:
        request = call.request
        sent = SentCall(
            call=call.id,
            host=self.host,
            user=request.user.name,
            session=request.user.session,
            method=request.method,
            params=dict(request.params),
            facts=request.facts,
            is_awaited=request.is_awaited,
        )
        call.waits = False
        try:
            await self.connection.send(node, sent)
        except ResponseError as error:
            raise _not_sent(problem_of(error)) from error
        except REDIS_FAILURES as error:
            # Perhaps it was sent. It cannot begin, once it was taken back.
            await self._take_back(call, f"Redis did not answer: {problem_of(error)}")

    async def _end_of(self, call: RemoteCall, node: str, listener: CallListener) -> Ended:
        """Pass on the messages of a call's node, and return the last one, its end.

        Raises:
            Again: The call must be sent again.
            Gone: It had started, and its node is gone.
        """
        asking = list["asyncio.Task[None]"]()
        try:
            while True:
                message = await call.received.get()
                if isinstance(message, Exception):
                    raise message
                if message.kind == "end":
                    break
                body = message.body
                if message.kind == "refused":
                    raise Again("the node did not take it")
                if message.kind == "ask":
                    asking.append(asyncio.create_task(self._answer(call, node, listener, body)))
                elif body.get("method") != NOTICE:
                    await listener.notify(body)
                elif isinstance(params := body.get("params"), Mapping):
                    await listener.tell(str(params.get("message")))
        finally:
            for task in asking:
                task.cancel()
        if call.dropped:
            await listener.dropped(call.dropped)
        return read_ended(message.body)

    async def _answer(
        self, call: RemoteCall, node: str, listener: CallListener, body: Mapping[str, Any]
    ) -> None:
        """Send a tool's request to the client, and its answer to the node."""
        if body.get("method") in CLIENT_REQUESTS:
            reply = await listener.request(body)
        else:
            reply = {"error": {"code": -32601, "message": "a node may ask clients only what tools may"}}
        answer = Answer(call=call.id, number=str(body.get("number")), reply=dict(reply))
        with contextlib.suppress(*REDIS_FAILURES):
            await self.connection.send(node, answer)

    async def _receive(self, message: NodeMessage) -> None:
        if (call := self.calls.get(message.call)) is not None:
            call.receive(message)

    async def _watch(self) -> None:
        """Renew the name of this host and the use of sessions, and find calls whose node is gone."""
        renewed = 0.0
        while True:
            leave_if_cancelled()
            try:
                await self._look()
                if self.sessions is not None and time.monotonic() - renewed >= _RENEW_S:
                    await asyncio.to_thread(self.sessions.renew)
                    renewed = time.monotonic()
                self._fault = None
            except REDIS_FAILURES as error:
                self._fault = "the Redis of the fleet does not answer"
                log.warning("redis not reachable", extra={"fault": problem_of(error)})
            await asyncio.sleep(_WATCH_S)

    async def _look(self) -> None:
        """Read the status of each node, and take back calls that their node does not have."""
        redis = self.connection.redis
        mine, nodes_key = redis_key("host", self.host), redis_key("nodes", self.release)
        async with redis.pipeline(transaction=False) as together:
            # A Redis without memory still renews what it has.
            together.pexpire(mine, int(HOST_TTL_S * 1000))
            together.set(mine, "", px=int(HOST_TTL_S * 1000))
            together.smembers(nodes_key)
            *_, members = await together.execute(raise_on_error=False)
        if isinstance(members, Exception):
            raise members
        accepting = {name.decode(errors="replace") for name in members}
        calls = [call for call in self.calls.values() if call.node is not None]
        names = sorted(accepting | {str(call.node) for call in calls})
        keys = [redis_key("node", name) for name in names]
        alive = dict[str, NodeStatus]()
        for name, key, sealed in zip(names, keys, await redis.mget(keys) if keys else [], strict=True):
            if isinstance(sealed, bytes):
                status = await self.connection.opened(
                    NodeStatus.model_validate, sealed, to=key, is_urgent=True
                )
                alive |= {} if status is None else {name: status}
        self._nodes = {name: alive[name].capacity for name in sorted(accepting & alive.keys())}
        self._absent = {name: self._absent.get(name, 0) + 1 for name in names if name not in alive}
        gone = {name for name, looks in self._absent.items() if looks > _MOST_ABSENT}
        if gone & accepting:
            await redis.srem(nodes_key, *(gone & accepting))
        for call in calls:
            if call.node in gone:
                await self._take_back(call, "the worker node that ran it is gone")
            elif call.node in alive and call.missed_in(alive[call.node]) > _MOST_UNLISTED:
                # A node lists a call until its end is in the stream of the host, which may still be reading.
                await self._take_back(call, "the worker node does not have it")

    async def _take_back(self, call: RemoteCall, reason: str) -> None:
        """Take a call away from its node; have it sent again where that does no harm."""
        try:
            start_revoked = await self.connection.redis.delete(redis_key("begin", call.id))
        except REDIS_FAILURES:
            # The next look tries again.
            return
        may_run = call.is_idempotent or (start_revoked and not call.has_started)
        call.receive(Again(reason) if may_run else Gone(reason))

    async def _abandon(self, call: RemoteCall) -> None:
        """Keep a call from beginning, or end it at its node."""
        ends = time.monotonic() + 2 * FENCE_S
        # A node that Redis does not answer either has ended all its calls by then.
        while time.monotonic() < ends:
            with contextlib.suppress(*REDIS_FAILURES):
                await self.connection.redis.delete(redis_key("begin", call.id))
                if call.node is not None:
                    await self.connection.send(call.node, Cancel(call=call.id))
                return
            await asyncio.sleep(_WATCH_S)


def _not_sent(problem: str) -> CallError:
    """Return the error of a call that could not be handed to a worker node."""
    return _busy(
        f"The call could not be handed to a worker node: {problem}",
        "Call again; nothing of it has been done. For the operator: see that Redis answers and has memory",
    )


def _busy(message: str, suggestion: str) -> CallError:
    return CallError(
        Code.E_BUSY,
        f"{message}; try again in {_RETRY_AFTER_S} seconds",
        details={"retry_after_seconds": _RETRY_AFTER_S, "suggestion": suggestion},
    )
