"""The executor of a host whose calls run on worker nodes: placed, sent, watched, and placed again.

The host that has a client's request owns the call: it finds a node for it, and it alone decides, when a node
falls silent, whether the call may be given to another. A node asks before it begins (`scripts/begin.lua`),
and a call that was taken away from it cannot begin. So no call runs twice, unless its tool says that this
does no harm.

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

from runner.contract.error_messages import invalid_result, over_rate
from runner.fleet.connection import REDIS_FAILURES, TASK, FleetConnection, leave_if_cancelled, problem_of
from runner.fleet.errors import may_have_run, no_room, redis_lost
from runner.fleet.far_call import Again, FarCall, Gone, Limit
from runner.fleet.listening import NOTICE
from runner.fleet.lost_nodes import MISSED_S
from runner.fleet.lua import COUNT, REVOKE
from runner.fleet.messages import WIRE_VERSION, HostMessage, NodeMessage, read
from runner.fleet.placing import LEASE_S, NOTE_S, Placing
from runner.fleet.release import release_of
from runner.fleet.results import Ended, completed_of, read_ended
from runner.fleet.seal import Forged
from runner.fleet.shared_events import SharedEvents
from runner.fleet.shared_sessions import SharedSessions
from runner.settings.named_limits import Counted
from runner.steps.client_message import MESSAGE_MAX_BYTES
from runner.steps.listener import CLIENT_REQUESTS, CallListener
from runner.steps.request import Completed, Request
from runner.toolset.catalog import ToolSpec
from runner.toolset.rates import WINDOW_S
from runner.toolset.toolset import Toolset
from runner.worker.wire import WireError

__all__ = ["LEASE_S", "FleetEngine"]

log = logging.getLogger(__name__)

_WATCH_S = 0.5
_RENEW_S = 2.0
_TAKEN_S = 5.0
_TRIES = 4
_HOUR_MS = 3_600_000


@dataclass(slots=True, kw_only=True, eq=False)
class FleetEngine:
    """Executor of calls on worker nodes. A `RemoteExecutor`.

    Attributes:
        toolset: What is served; its own workers only tell what there is.
        connection: The way to Redis.
        release: What it serves, as nodes name it.
        host: What this host is called in the fleet.
        lasting: What goes on as long as it does: it hears nodes, and keeps what it holds.
        placing: Takes places for its calls.
        sessions: The sessions that files end with; None where files persist.
    """

    toolset: Toolset
    connection: FleetConnection
    release: str
    host: str = field(default_factory=lambda: f"host-{secrets.token_hex(6)}")
    lasting: "Sequence[asyncio.Task[None]]" = ()
    placing: Placing = field(init=False)
    sessions: SharedSessions | None = None
    _calls: dict[str, FarCall] = field(default_factory=dict)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    _missed: dict[str, float] = field(default_factory=dict)
    _fault: str | None = None
    _noting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.placing = Placing(
            connection=self.connection,
            release=self.release,
            host=self.host,
            stay_s=self.toolset.settings.session_idle_s,
        )

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
            log.info("host of a fleet", extra={"host": engine.host, "release": release})
            stream = connection.keys.said(engine.host)
            if not toolset.library.persist:
                engine.sessions = SharedSessions(redis=connection.blocking(), keys=connection.keys)
                toolset.share(engine.sessions)
            shared = SharedEvents(connection=connection, events=toolset.events, source=engine.host)
            lasting = engine.lasting = [
                asyncio.create_task(work)
                for work in (
                    connection.hear(stream, engine._hear),
                    engine._watch(),
                    engine.placing.listen(),
                    engine.placing.look(),
                )
            ]
            try:
                async with shared.shared(hears=True):
                    yield engine
            finally:
                if engine._ending:
                    await asyncio.wait(engine._ending, timeout=LEASE_S)
                for task in (*lasting, *engine._ending):
                    task.cancel()
                await asyncio.wait((*lasting, *engine._ending))
                with contextlib.suppress(*REDIS_FAILURES):
                    await connection.redis.delete(stream)

    @property
    def running(self) -> int:
        """Return how many requests of this host are under way in the fleet, or wait for that."""
        return len(self._calls)

    def waiting(self) -> int:
        """Return how many of them have no node: they wait for a place, or are between two."""
        return self.running - len(self.placed)

    @property
    def placed(self) -> Mapping[str, str]:
        """Return the nodes of the requests that have one, by the request."""
        return {call.id: call.node for call in self._calls.values() if call.node is not None}

    @property
    def begun(self) -> Sequence[str]:
        """Return the requests of which their nodes have said that their code runs."""
        return [call.id for call in self._calls.values() if call.has_begun]

    async def faults(self) -> Mapping[str, str]:
        """Return the reason why calls cannot be taken now, if it is the fleet's fault."""
        return {} if self._fault is None else {"fleet": self._fault}

    async def end_session(self, session: str) -> None:
        """End the background work of a session on every node."""
        keys = self.connection.keys
        with contextlib.suppress(*REDIS_FAILURES):
            for node in await self.connection.redis.smembers(keys.nodes(self.release)):
                name = node.decode() if isinstance(node, bytes) else node
                await self._tell(name, HostMessage(kind="ended", call="", body={"session": session}))

    async def count(self, limits: Sequence[Counted]) -> None:
        """Count a call for what may be called how often, in the whole fleet. See `RemoteExecutor`."""
        rates = [(one, most) for one in limits if (most := one.limit.calls_per_minute) is not None]
        if not rates:
            return
        keys = [self.connection.keys.rate(f"{one.name}.calls", one.whose) for one, _ in rates]
        arguments: list[str | int] = [
            int(WINDOW_S * 1000),
            secrets.token_hex(8),
            *(most for _, most in rates),
        ]
        try:
            which, *after = await COUNT.run(self.connection.redis, keys, *arguments)
        except REDIS_FAILURES as error:
            raise redis_lost(problem_of(error)) from error
        if which:
            one, most = rates[which - 1]
            setting = f"call_limits.{one.name}.calls_per_minute"
            raise over_rate(setting, most, after[0] / 1000, of_user=bool(one.whose))

    async def call(
        self, request: Request, spec: ToolSpec, listener: CallListener, limits: Sequence[Counted]
    ) -> Completed:
        """Execute a tool call. See `RemoteExecutor`."""
        ended = await self._ended(
            FarCall(
                request=request,
                is_tool=True,
                is_idempotent=spec.is_idempotent,
                limits=self._limits(request, limits),
            ),
            listener,
        )
        request.steps.done("run")
        files = self.toolset.files(request.user, trace=request.id)
        completed = await completed_of(
            ended,
            request,
            spec,
            files,
            message_max_bytes=MESSAGE_MAX_BYTES,
            is_observed=bool(self.toolset.observers),
        )
        request.steps.done("collect")
        return completed

    async def relay(
        self, request: Request, listener: CallListener, limits: Sequence[Counted]
    ) -> Mapping[str, Any]:
        """Answer any other request. See `RemoteExecutor`."""
        call = FarCall(
            request=request, is_tool=False, is_idempotent=True, limits=self._limits(request, limits)
        )
        ended = await self._ended(call, listener)
        if ended.wire_error is not None:
            raise WireError(ended.wire_error)
        if ended.failure is not None:
            raise ended.error()
        if ended.answer is None:
            raise invalid_result("the worker node", "it did not send an answer")
        return ended.answer

    def _limits(self, request: Request, limits: Sequence[Counted]) -> list[Limit]:
        """Return what a call counts for, of calls at once in the whole fleet."""
        keys, settings = self.connection.keys, self.toolset.settings
        return [
            Limit(keys.running("all"), settings.max_calls),
            Limit(keys.running("user", request.user.segment), settings.max_calls_per_user),
            *(
                Limit(keys.running(f"limit.{one.name}", one.whose), one.limit.max_calls)
                for one in limits
                if one.limit.max_calls is not None
            ),
        ]

    async def _ended(self, call: FarCall, listener: CallListener) -> Ended:
        """Place a call, and return how it ended; place it again where that does no harm.

        Raises:
            CallError: It could not begin, or nobody can say how it ended.
        """
        self._calls[call.id] = call
        is_over = False
        try:
            for _ in range(_TRIES):
                await self.placing.place(call)
                try:
                    await self._send(call)
                    ended = await self._heard(call, listener)
                except Again as reason:
                    log.warning(
                        "call placed again", extra={"call": call.id, "node": call.node, "reason": str(reason)}
                    )
                    await self.placing.give_back(call)
                    call.epoch += 1
                    continue
                is_over = True
                return ended
            raise no_room(0)
        except Gone as reason:
            raise may_have_run(str(reason)) from reason
        finally:
            del self._calls[call.id]
            # The waiter for the answer does not wait for this.
            ending = asyncio.create_task(self._let_go(call, is_over=is_over))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _send(self, call: FarCall) -> None:
        node = str(call.node)
        record = call.record(version=WIRE_VERSION, release=self.release, host=self.host)
        sealed = self.connection.key.seal(record.model_dump(), to=node)
        try:
            docket = await self.connection.docket(node)
            await docket.add(TASK, key=f"{call.id}.{call.epoch}")(sealed)
        except ResponseError as error:
            raise redis_lost(problem_of(error)) from error
        except REDIS_FAILURES as error:
            # Perhaps it was sent. It cannot begin, once it was taken back.
            await self._take_back(call, f"Redis did not answer: {problem_of(error)}")

    async def _heard(self, call: FarCall, listener: CallListener) -> Ended:
        """Pass on what a node says of a call, until it says how that ended."""
        asking = list["asyncio.Task[None]"]()
        try:
            while (message := await call.next()).kind != "end":
                if message.kind == "refused":
                    call.avoided = call.node or ""
                    raise Again("the node did not take it")
                if message.kind == "ask":
                    asking.append(asyncio.create_task(self._answer(call, listener, message.body)))
                else:
                    await _noted(message.body, listener)
        finally:
            for task in asking:
                task.cancel()
        if call.lost:
            await listener.dropped(call.lost)
        return read_ended(message.body)

    async def _answer(self, call: FarCall, listener: CallListener, body: Mapping[str, Any]) -> None:
        """Send a tool's request to the client, and its answer to the node."""
        if body.get("method") in CLIENT_REQUESTS:
            reply = await listener.request(body)
        else:
            reply = {"error": {"code": -32601, "message": "a node may ask clients only what tools may"}}
        answer = HostMessage(
            kind="answer", call=call.id, body={"number": body.get("number"), "said": dict(reply)}
        )
        with contextlib.suppress(*REDIS_FAILURES):
            await self._tell(str(call.node), answer)

    async def _tell(self, node: str, message: HostMessage) -> None:
        stream = self.connection.keys.told(node)
        sealed = self.connection.key.seal(message.model_dump(), to=node)
        async with self.connection.redis.pipeline(transaction=False) as both:
            both.xadd(stream, {"said": sealed})
            both.pexpire(stream, _HOUR_MS)
            await both.execute()

    async def _hear(self, text: bytes) -> None:
        try:
            message: NodeMessage = read(NodeMessage, text, self.connection.key, to=self.host)
        except Forged as error:
            log.warning("a message was dropped", extra={"reason": str(error)})
            return
        call = self._calls.get(message.call)
        if call is not None:
            call.hear(message)

    async def _watch(self) -> None:
        """Keep the leases of calls, and find those whose node is gone."""
        renewed = 0.0
        while True:
            leave_if_cancelled()
            await asyncio.sleep(_WATCH_S)
            try:
                if time.monotonic() - renewed >= _RENEW_S:
                    await self._renew()
                    if self.sessions is not None:
                        await asyncio.to_thread(self.sessions.renew)
                    renewed = time.monotonic()
                await self._look_after()
                self._fault = None
            except REDIS_FAILURES as error:
                self._fault = "the Redis of the fleet does not answer"
                log.warning("redis is out of reach", extra={"fault": problem_of(error)})

    async def _look_after(self) -> None:
        calls = [call for call in self._calls.values() if call.node is not None]
        nodes = sorted({str(call.node) for call in calls})
        if not nodes:
            await self.connection.redis.ping()
            return
        keys, now = self.connection.keys, time.monotonic()
        self._missed = {node: since for node, since in self._missed.items() if node in nodes}
        async with self.connection.redis.pipeline(transaction=False) as all_of_them:
            for node in nodes:
                all_of_them.exists(keys.node(node))
            alive = dict(zip(nodes, await all_of_them.execute(), strict=True))
        for node in nodes:
            if alive[node]:
                self._missed.pop(node, None)
            else:
                self._missed.setdefault(node, now)
        for call in calls:
            # One whose name Redis has lost says it again within a second.
            if now - self._missed.get(str(call.node), now) > MISSED_S:
                await self._take_back(call, "the worker node that ran it is gone")
            elif not call.has_taken and now - call.sent_at > _TAKEN_S:
                await self._take_back(call, "the worker node did not take it")

    async def _take_back(self, call: FarCall, reason: str) -> None:
        """Take a call away from its node; have it placed again where that does no harm."""
        try:
            stood = await self._revoke(call)
        except REDIS_FAILURES:
            # At the next look; until then it stays where it is.
            return
        node, call.node = call.node, None
        call.avoided = node or ""
        log.warning("call taken back", extra={"call": call.id, "node": node, "reason": reason})
        has_not_begun = stood == b"placed" and not call.has_begun
        call.over(Again(reason) if has_not_begun or call.is_idempotent else Gone(reason))

    async def _revoke(self, call: FarCall) -> Any:
        """Keep a call from beginning where it is; return how it stood there."""
        key = self.connection.keys.call(call.id)
        return await REVOKE.run(self.connection.redis, [key], call.epoch, int(LEASE_S * 1000))

    async def _renew(self) -> None:
        """Keep the places of calls; note again what Redis has lost of those that run."""
        keys, lease_ms = self.connection.keys, int(LEASE_S * 1000)
        calls = [call for call in self._calls.values() if call.node is not None]
        if not calls:
            return
        seconds, micros = await self.connection.redis.time()
        ends = seconds * 1000 + micros // 1000 + lease_ms
        async with self.connection.redis.pipeline(transaction=False) as all_of_them:
            for call in calls:
                all_of_them.pexpire(keys.call(call.id), int(NOTE_S * 1000))
                for key, member in self._places(call):
                    all_of_them.zadd(key, {member: ends}, xx=True)
                    all_of_them.pexpire(key, lease_ms)
            replies = await all_of_them.execute(raise_on_error=False)
        width = [1 + 2 * (len(call.limits) + 1) for call in calls]
        for call, at in zip(calls, [sum(width[:index]) for index in range(len(width))], strict=True):
            if replies[at] == 0:
                await self._noted_again(call, ends)

    def _places(self, call: FarCall) -> list[tuple[str, str]]:
        """Return the sets in which a call that has a node counts, with what stands for it there."""
        return [
            *((limit.key, call.id) for limit in call.limits),
            (self.connection.keys.load(str(call.node)), call.id),
        ]

    async def _noted_again(self, call: FarCall, ends: int) -> None:
        """Deal with a call of which Redis knows nothing any more, as after a restart without its data."""
        async with self._noting:
            # Most often it has ended meanwhile.
            if self._calls.get(call.id) is not call or call.node is None:
                return
            if call.has_begun:
                await self._note(call, ends)
            else:
                await self._take_back(call, "Redis has lost the call")

    async def _note(self, call: FarCall, ends: int) -> None:
        key, places = self.connection.keys.call(call.id), self._places(call)
        noted: dict[Any, Any] = {
            "state": "begun",
            "node": str(call.node),
            "epoch": call.epoch,
            "host": self.host,
        }
        async with self.connection.redis.pipeline() as whole:
            whole.hset(key, mapping=noted)
            whole.pexpire(key, int(NOTE_S * 1000))
            # It takes its places, too: limits are of what runs, whatever Redis has kept.
            for name, member in places:
                whole.zadd(name, {member: ends})
                whole.pexpire(name, int(LEASE_S * 1000))
            await whole.execute()

    async def _let_go(self, call: FarCall, *, is_over: bool) -> None:
        """Forget a call; where it is not over, end it first."""
        if self._noting.locked():
            # What is being noted of it again has to be there before it is removed.
            async with self._noting:
                pass
        if not is_over:
            with contextlib.suppress(*REDIS_FAILURES):
                await self._revoke(call)
                if call.node is not None:
                    await self._tell(call.node, HostMessage(kind="cancel", call=call.id))
        await self.placing.give_back(call, is_over=is_over)


async def _noted(body: Mapping[str, Any], listener: CallListener) -> None:
    """Give the client of a call a notice of its node, or a notification of its tool."""
    if body.get("method") != NOTICE:
        await listener.notify(body)
        return
    params = body.get("params")
    text = params.get("message") if isinstance(params, Mapping) else None
    if isinstance(text, str):
        await listener.tell(text)
