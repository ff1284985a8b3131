"""Executor of a host whose calls run on worker nodes: sends each call to its user's node, and watches it.

The host that received a client's request owns the call. Before a node runs its code, it deletes the call's
`begin` key; only one process can delete it. When a node appears dead, the host deletes the key. If the key
still existed, and Redis has lost no writes since, the call has not started and cannot: it is sent to another
node. Otherwise the call is repeated only if its tool declares itself idempotent.

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

from runner.contract.error_messages import crashed
from runner.errors import CallError, Code
from runner.fleet.connection import (
    FENCE_S,
    HOST_TTL_S,
    HOUR_MS,
    REDIS_FAILURES,
    FleetConnection,
    problem_of,
    redis_key,
    repeat,
)
from runner.fleet.messages import (
    NOTICE,
    Answer,
    Cancel,
    NodeMessage,
    NodeStatus,
    SentCall,
    SessionEnd,
    release_of,
)
from runner.fleet.placing import node_of
from runner.fleet.results import Ended, completed_of, read_ended
from runner.fleet.shared_events import SharedEvents
from runner.fleet.shared_sessions import SharedSessions
from runner.steps.listener import CLIENT_REQUESTS, CallListener
from runner.steps.request import Completed, Request
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset

__all__ = ["FleetEngine"]

log = logging.getLogger(__name__)

_WATCH_S = 0.5
_RENEW_S = 2.0
# Longer than the timeout of a command and the pause before the next look.
_SILENT_S = 3.0
# Consecutive looks without a status, `_WATCH_S` apart; consecutive statuses without the call, 1 s apart.
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
    """One attempt to run a request at one node. Each further attempt has its own id.

    Attributes:
        request: The request.
        is_idempotent: Whether it may run twice.
        id: Its id in the fleet.
        node: Its node, once there is one.
        has_started: Whether its code has started, as its node last reported; None if it did not.
        dropped: Number of notifications dropped because its client was too slow.
        received: Messages from the node, or the reason why there will be no more.
    """

    request: Request
    is_idempotent: bool
    id: str
    node: str | None = None
    has_started: bool | None = None
    dropped: int = 0
    _beat: int = -1
    _absent: int = 0
    _unlisted: int = 0
    received: "asyncio.Queue[NodeMessage | Exception]" = field(
        default_factory=lambda: asyncio.Queue(_MOST_MESSAGES)
    )

    def receive(self, message: NodeMessage | Exception) -> None:
        """Queue a message from the node, or the reason why there will be no more."""
        if isinstance(message, NodeMessage) and message.kind == "note":
            if self.received.qsize() >= _MOST_MESSAGES // 2:
                # Notifications that a client does not read must leave room for the end of its call.
                self.dropped += 1
                return
        elif self.received.full():
            self.received.get_nowait()
        self.received.put_nowait(message)

    def loss_in(self, status: NodeStatus | None) -> str | None:
        """Update from the current status of its node; return the reason if the call is lost."""
        if status is None:
            self._absent += 1
            return "the worker node that ran it is gone" if self._absent > _MOST_ABSENT else None
        self.has_started = status.calls.get(self.id)
        if self.has_started is not None:
            self._unlisted = 0
        elif status.beat != self._beat:
            # A Redis that is out of memory keeps the old status.
            self._unlisted += 1
        self._absent, self._beat = 0, status.beat
        # A node lists a call until its end is in the stream of the host, which may still be reading.
        return "the worker node does not have it" if self._unlisted > _MOST_UNLISTED else None


@dataclass(slots=True, kw_only=True, eq=False)
class FleetEngine:
    """Executor of calls on worker nodes. A `runner.toolset.toolset.Fleet`.

    Attributes:
        toolset: The tools; workers on this host only list them.
        connection: The connection to Redis.
        release: The release that this host serves.
        host: Name of this host in the fleet.
        lasting: Tasks that run as long as the host: they read messages, and watch nodes.
        sessions: Sessions whose files are deleted when they end; None if files persist.
        calls: Calls in flight, by their ids in the fleet.
    """

    toolset: Toolset
    connection: FleetConnection
    release: str
    host: str = field(default_factory=lambda: f"host-{secrets.token_hex(6)}")
    lasting: "Sequence[asyncio.Task[None]]" = ()
    sessions: SharedSessions | None = None
    calls: dict[str, RemoteCall] = field(default_factory=dict)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    # Capacity of each node that accepts calls.
    _nodes: dict[str, int] = field(default_factory=dict)
    _looked_at: float = field(default_factory=time.monotonic)
    _renewed_at: float = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls, toolset: Toolset) -> AsyncIterator["FleetEngine"]:
        """Execute the calls of a toolset in the fleet of its settings, until the block ends.

        Raises:
            UsageError: The settings do not name a fleet, or Redis cannot be used.
        """
        release = release_of(toolset.targets)
        async with FleetConnection.open(toolset.settings) as connection:
            engine = toolset.fleet = cls(toolset=toolset, connection=connection, release=release)
            log.info("fleet host started", extra={"host": engine.host, "release": release})
            if not toolset.library.persist:
                engine.sessions = SharedSessions(redis=connection.blocking())
                toolset.share(engine.sessions)
            shared = SharedEvents(connection=connection, events=toolset.events, source=engine.host)
            lasting = engine.lasting = [
                asyncio.create_task(
                    connection.consume(engine.host, NodeMessage.model_validate, engine._receive)
                ),
                asyncio.create_task(repeat(engine._watch, pause_s=_WATCH_S)),
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
        """Return the number of this host's requests without a node, or queued at their node."""
        return sum(call.node is None or call.has_started is False for call in self.calls.values())

    async def faults(self) -> Mapping[str, str]:
        """Return the fault `fleet` with its reason while Redis does not answer."""
        is_silent = time.monotonic() - self._looked_at > _SILENT_S
        return {"fleet": "the Redis of the fleet does not answer"} if is_silent else {}

    async def end_session(self, session: str) -> None:
        """End the background work of a session on every node."""
        with contextlib.suppress(*REDIS_FAILURES):
            for node in tuple(self._nodes):
                await self.connection.send(node, SessionEnd(session=session))

    async def call(self, request: Request, spec: ToolSpec, listener: CallListener) -> Completed:
        """Execute a tool call. See `Fleet`."""
        ended = await self._ended(request, listener, is_idempotent=spec.is_idempotent)
        request.steps.done("run")
        files = self.toolset.files(request.user, trace=request.id)
        completed = await completed_of(ended, request, spec, files, is_observed=bool(self.toolset.observers))
        request.steps.done("collect")
        return completed

    async def relay(self, request: Request, listener: CallListener) -> Mapping[str, Any]:
        """Answer any other request. See `Fleet`."""
        ended = await self._ended(request, listener, is_idempotent=True)
        if ended.answer is None:
            raise ended.error()
        return ended.answer

    async def _ended(self, request: Request, listener: CallListener, *, is_idempotent: bool) -> Ended:
        """Send a request to a node, and return its end; send it again where that is safe.

        Raises:
            CallError: It could not start, or its outcome is lost.
        """
        avoided = None
        for _ in range(_TRIES):
            id_ = f"{request.id}.{secrets.token_hex(4)}"
            call = self.calls[id_] = RemoteCall(request=request, is_idempotent=is_idempotent, id=id_)
            is_over = False
            try:
                call.node = await self._place(call, avoided)
                request.steps.done("place")
                await self._send(call, call.node)
                ended = await self._end_of(call, call.node, listener)
                is_over = True
            except Again as reason:
                log.warning(
                    "call placed again", extra={"call": id_, "node": call.node, "reason": str(reason)}
                )
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
                    # A task, since the client must not wait for this.
                    ending = asyncio.create_task(self._abandon(call))
                    self._ending.add(ending)
                    ending.add_done_callback(self._ending.discard)
        raise _not_sent("no worker node took it")

    async def _place(self, call: RemoteCall, avoided: str | None) -> str:
        """Allow the call to start, and return the node of its user, which stays while it accepts calls.

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
            # Avoided only on the first pass: if there is no other node, it may accept the call later.
            nodes = {name: most for name, most in self._nodes.items() if name != avoided}
            best, avoided = node_of(call.request.user.segment, nodes), None
            try:
                if best is not None:
                    async with redis.pipeline() as whole:
                        # If Redis restarts before this is executed, the call does not start.
                        whole.set(redis_key("begin", call.id), await self.connection.history(), px=HOUR_MS)
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
        try:
            await self.connection.send(node, sent)
        except ResponseError as error:
            raise _not_sent(problem_of(error)) from error
        except REDIS_FAILURES as error:
            # It may have been sent. Once it is taken back, it cannot start.
            await self._take_back(call, f"Redis did not answer: {problem_of(error)}")

    async def _end_of(self, call: RemoteCall, node: str, listener: CallListener) -> Ended:
        """Forward the messages from a call's node to the listener, and return its end.

        Raises:
            Again: The call must be sent again.
            Gone: It may have started, and its outcome is lost.
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
        """Send a tool's request to the client, and the client's answer to the node."""
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
        """Renew the heartbeat and session leases of this host, and find calls that their node lost."""
        redis = self.connection.redis
        mine, nodes_key = redis_key("host", self.host), redis_key("nodes", self.release)
        async with redis.pipeline(transaction=False) as together:
            # A Redis that is out of memory refuses SET, but not PEXPIRE.
            together.pexpire(mine, int(HOST_TTL_S * 1000))
            together.set(mine, "", px=int(HOST_TTL_S * 1000))
            together.smembers(nodes_key)
            *_, members = await together.execute(raise_on_error=False)
        if isinstance(members, Exception):
            raise members
        accepting = {name.decode(errors="replace"): name for name in members}
        calls = [(call, call.node) for call in self.calls.values() if call.node is not None]
        names = sorted({*accepting, *(node for _, node in calls)})
        keys = [redis_key("node", name) for name in names]
        statuses = {
            name: self.connection.read(NodeStatus.model_validate, sealed, to=key)
            if isinstance(sealed, bytes)
            else None
            for name, key, sealed in zip(names, keys, await redis.mget(keys) if keys else [], strict=True)
        }
        self._nodes = {name: status.capacity for name in accepting if (status := statuses[name]) is not None}
        if silent := [member for name, member in accepting.items() if name not in self._nodes]:
            # A node that is alive adds itself again with its next beat.
            await redis.srem(nodes_key, *silent)
        for call, node in calls:
            if (reason := call.loss_in(statuses[node])) is not None:
                await self._take_back(call, reason)
        self._looked_at = time.monotonic()
        if self.sessions is not None and self._looked_at - self._renewed_at >= _RENEW_S:
            await asyncio.to_thread(self.sessions.renew)
            self._renewed_at = self._looked_at

    async def _take_back(self, call: RemoteCall, reason: str) -> None:
        """Take a call away from its node; it is sent again where that is safe, else it fails."""
        try:
            may_run = await self.connection.revoke_start(call.id) or call.is_idempotent
        except REDIS_FAILURES:
            # The next look tries again.
            return
        call.receive(Again(reason) if may_run else Gone(reason))

    async def _abandon(self, call: RemoteCall) -> None:
        """Keep a call from starting, or cancel it at its node."""
        ends = time.monotonic() + 2 * FENCE_S
        # A node that cannot reach Redis either has cancelled all its calls by then.
        while time.monotonic() < ends:
            with contextlib.suppress(*REDIS_FAILURES):
                await self.connection.revoke_start(call.id)
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
