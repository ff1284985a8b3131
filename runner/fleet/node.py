"""A worker node: reads calls from its stream, runs them in the sandbox of its machine, and reports their end.

A node lives as long as its name in Redis. Every second it writes its status; where it could not do so for
`FENCE_S`, it ends all its calls, before any host takes it for dead and gives them to others. Then it begins a
new life, with a new name and nothing of the old one.

Source: `docs/decisions/0044-fleet-over-redis.md`.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from runner.artifacts.route import NEVER_INLINE
from runner.call import execute_admitted, relay
from runner.contract.error_messages import cancelled
from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError
from runner.files.sessions import Unkept
from runner.fleet.connection import (
    FENCE_S,
    NODE_TTL_S,
    REDIS_FAILURES,
    FleetConnection,
    leave_if_cancelled,
)
from runner.fleet.messages import NOTICE, WIRE_VERSION, HostMessage, NodeMessage, NodeStatus, SentCall, read
from runner.fleet.placing import share_of
from runner.fleet.results import parts_of, report
from runner.fleet.seal import Forged
from runner.fleet.shared_events import SharedEvents
from runner.fleet.shared_state import SharedState
from runner.steps.listener import CLIENT_REQUESTS, LOG_LEVELS, CallListener, Nobody
from runner.steps.request import Request
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.worker.wire import RequestFacts, WireError

__all__ = ["Node"]

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_BEAT_S = 1.0
_SAY_AGAIN_S = 0.2
_MOST_WAITING = 2000
_MOST_NOTE_BYTES = 1024 * 1024
# Calls taken in this life, of which Redis may deliver some again after it has lost the last moments.
_MOST_KNOWN = 10_000
# A host renews its name twice a second: where it has had time for that, it is gone.
_SILENT_BEATS = 5
_LAST_WORDS_S = 5.0
_LEAVE_S = 1.0


class Unwanted(Exception):
    """A call may not begin any more: its host has given it to another node, or to nobody."""


@dataclass(slots=True, kw_only=True)
class _RemoteListener(CallListener):
    """Receives the notifications and requests of one call on a node, and sends them to the call's host.

    Attributes:
        call: The call.
    """

    call: "NodeCall"

    async def notify(self, value: Mapping[str, object]) -> None:
        """Send a worker's notification. The host decides what of it its client gets."""
        value = self.masked(value)
        # The last thing that a tool said before it fell silent is part of its error.
        await CallListener.notify(self, value)
        await self.call.say("note", {"method": value.get("method"), "params": value.get("params")})

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a worker's request, or have the client answer it."""
        if value.get("method") not in CLIENT_REQUESTS:
            return await CallListener.request(self, value)
        value = self.masked(value)
        return await self.call.ask({"method": value["method"], "params": value.get("params")})

    async def tell(self, text: str) -> None:
        """Send a notice to the client through the host."""
        self.notices.append(text)
        await self.call.say("note", {"method": NOTICE, "params": {"message": text}})


@dataclass(slots=True, kw_only=True, eq=False)
class NodeCall:
    """One call.

    Attributes:
        record: The record that its host sent.
        node: Its node.
        task: The task that runs it.
        silent: In how many beats in a row its host was not there.
        has_started: Whether its code has started.
    """

    record: SentCall
    node: "Node"
    task: "asyncio.Task[None] | None" = None
    silent: int = 0
    has_started: bool = False
    _questions: "dict[str, asyncio.Future[Mapping[str, object]]]" = field(default_factory=dict)

    def cancel(self) -> None:
        """End it."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Run it, and report its end to its host."""
        record = self.record
        try:
            facts, headers = dict(record.facts), record.facts.get("headers")
            if headers is not None:
                facts["headers"] = [(str(name), str(value)) for name, value in headers]
            user, known = User(record.user, record.session), RequestFacts(**facts)
        except Exception as error:  # noqa: BLE001 - a malformed record of a host is refused
            log.warning("fleet call refused", extra={"call": record.call, "reason": str(error)})
            await self.say("refused")
            return
        request = Request(
            user=user,
            method=record.method,
            params=record.params,
            facts=known,
            client=Nobody(),
            inline_max_bytes=NEVER_INLINE,
            # All levels: the host filters them for its client.
            levels=LOG_LEVELS,
            is_awaited=record.is_awaited,
            id=record.call.partition(".")[0],
            begins=self._begins,
        )
        await self.node.state.fetch(user.segment)
        try:
            end = await self._end_of(request)
        except Unwanted:
            await self.say("refused")
            return
        except asyncio.CancelledError:
            # For a host that has cancelled it this is too late; another host gets it when this node stops.
            end = report(request, **parts_of(cancelled()))
            await asyncio.shield(self.say("end", end) if self.has_started else self.say("refused"))
            raise
        await self.node.state.store(user.segment)
        await self.say("end", end)

    def answered(self, body: Mapping[str, Any]) -> None:
        """Take what the client has answered."""
        question = self._questions.pop(str(body.get("number")), None)
        reply: object = body.get("said")
        if question is not None and not question.done() and isinstance(reply, dict):
            question.set_result(reply)

    async def _end_of(self, request: Request) -> dict[str, Any]:
        """Execute the call and return the report of its end.

        Raises:
            Unwanted: It may not begin.
        """
        tool = request.tool if self.record.is_tool else None
        listener = _RemoteListener(
            client=request.client,
            params=request.params,
            levels=request.levels,
            deadlines=self.node.toolset.effective(tool).deadlines,
            user=request.user.segment,
            state=self.node.toolset.state,
            call=self,
        )
        try:
            if self.record.is_tool:
                completed = await execute_admitted(self.node.toolset, request, listener)
                return report(request, **parts_of(completed))
            return report(request, answer=await relay(self.node.toolset, request, listener=listener))
        except Unwanted:
            raise
        except WireError as error:
            return report(request, wire_error=error.error)
        except CallError as error:
            return report(request, **parts_of(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the host gets an error of the contract
            return report(request, **parts_of(unexpected(error, call=request.id)))

    async def _begins(self) -> None:
        """Request the right to begin; once if its zygote ended before.

        Raises:
            Unwanted: It may not.
        """
        if not self.has_started and not await self.node.begins(self.record):
            raise Unwanted(self.record.call)
        self.has_started = True

    async def ask(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        """Send the client a request through the host, and return its answer."""
        number = secrets.token_hex(8)
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            await self.say("ask", {**request, "number": number})
            answer: Mapping[str, object] = await question
            return answer
        finally:
            self._questions.pop(number, None)

    async def say(
        self, kind: Literal["note", "ask", "end", "refused"], body: Mapping[str, Any] | None = None
    ) -> None:
        """Send the host a message."""
        await self.node.say(
            self.record.host, NodeMessage(call=self.record.call, kind=kind, body=dict(body or {}))
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One life of a worker node.

    Attributes:
        toolset: What executes its calls.
        connection: The way to Redis.
        release: The release that it serves.
        name: Its name in the fleet.
        fenced: Set once Redis has not answered for too long.
        state: Session state of its users.
    """

    toolset: Toolset
    connection: FleetConnection
    release: str
    name: str
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    state: SharedState = field(init=False)
    _calls: dict[str, NodeCall] = field(default_factory=dict)
    _known: dict[str, None] = field(default_factory=dict)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)
    _outbox: "asyncio.Queue[tuple[str, NodeMessage]]" = field(
        default_factory=lambda: asyncio.Queue(_MOST_WAITING)
    )
    _is_draining: bool = False
    _reported_at: float = 0.0
    _beats: int = 0

    def __post_init__(self) -> None:
        self.state = SharedState(
            redis=self.connection.redis,
            keys=self.connection.keys,
            state=self.toolset.state,
            stay_s=self.toolset.settings.session_idle_s,
        )
        # A host uses the session of each call that runs here.
        self.toolset.share(Unkept())

    @classmethod
    @asynccontextmanager
    async def open(cls, toolset: Toolset, connection: FleetConnection, release: str) -> AsyncIterator["Node"]:
        """Take calls until the block ends."""
        name = f"{socket.gethostname()[:40]}-{secrets.token_hex(6)}"
        node = cls(toolset=toolset, connection=connection, release=release, name=name)
        node._reported_at = time.monotonic()
        await node._report()
        work = [
            asyncio.create_task(one)
            for one in (
                connection.consume(connection.keys("told", name), node._receive),
                node._beat(),
                node._send(),
            )
        ]
        log.info("worker node started", extra={"node": name, "release": release})
        shared = SharedEvents(connection=connection, events=toolset.events, source=name)
        # Calls end before it does: a node that is cut off has little time for that.
        async with shared.shared(subscribe=False):
            try:
                yield node
            finally:
                await node._end(work)

    async def drain(self, left_s: float, again: asyncio.Event) -> None:
        """Accept no further call, and let running calls end, for so many seconds or until `again` is set.

        Calls that wait for their turn go back to their hosts.
        """
        self._is_draining = True
        with contextlib.suppress(*REDIS_FAILURES):
            await self._report()
        self.toolset.drain.begin(left_s)
        for call in self._calls.values():
            if not call.has_started:
                call.cancel()
        done, hurry = asyncio.create_task(self._idle()), asyncio.create_task(again.wait())
        await asyncio.wait({done, hurry}, timeout=left_s + _LAST_WORDS_S, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            self.toolset.drain.begin(0)
            await asyncio.wait({done}, timeout=_LAST_WORDS_S)
        for task in (done, hurry):
            task.cancel()

    async def _idle(self) -> None:
        """Wait until no call runs and every message is sent."""
        while self._calls:
            await asyncio.wait({call.task for call in self._calls.values() if call.task is not None})
            await asyncio.sleep(0)
        await self._outbox.join()

    def _take(self, body: Mapping[str, Any]) -> Awaitable[None] | None:
        """Begin a call, or return its refusal, which is to be sent."""
        try:
            sent = SentCall.model_validate(body)
        except ValidationError as error:
            log.warning("fleet call dropped", extra={"reason": str(error.errors(include_input=False)[0])})
            return None
        if sent.call in self._known:
            return None
        self._known[sent.call] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        is_ours = sent.version == WIRE_VERSION and sent.release == self.release
        # They wait for their turn in the queue of the toolset, which bounds those of a user.
        is_full = len(self._calls) >= _MOST_WAITING
        if not is_ours or is_full or self._is_draining or self.fenced.is_set():
            return self.say(sent.host, NodeMessage(call=sent.call, kind="refused"))
        call = NodeCall(record=sent, node=self)
        self._calls[sent.call] = call
        call.task = asyncio.create_task(call.run())
        call.task.add_done_callback(lambda task: self._over(sent.call, task))
        return None

    def _over(self, call: str, task: "asyncio.Task[None]") -> None:
        self._calls.pop(call, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("fleet call failed", exc_info=fault, extra={"call": call})

    async def begins(self, record: SentCall) -> bool:
        """Return whether a call may begin: its host has not taken it back, and cannot any more."""
        try:
            return await self.connection.redis.delete(self.connection.keys("begin", record.call)) == 1
        except REDIS_FAILURES as error:
            log.warning("fleet call not started", extra={"call": record.call, "fault": str(error)})
            return False

    async def say(self, host: str, message: NodeMessage) -> None:
        """Send a host a message, once Redis accepts it; a note that is too long is dropped."""
        if message.kind == "note" and len(str(message.body)) > _MOST_NOTE_BYTES:
            return
        await self._outbox.put((host, message))

    async def _send(self) -> None:
        """Send the queued messages in order, and retry each until Redis accepts it."""
        while True:
            leave_if_cancelled()
            waiting = [await self._outbox.get()]
            while not self._outbox.empty():
                waiting.append(self._outbox.get_nowait())
            sealed = [
                (self.connection.keys("said", host), self.connection.key.seal(message.model_dump(), to=host))
                for host, message in waiting
            ]
            # All or none, so that a retry sends no message twice.
            whole = self.connection.redis.pipeline(transaction=len(sealed) > 1)
            is_sent = False
            while not is_sent:
                leave_if_cancelled()
                try:
                    async with whole:
                        for stream, text in sealed:
                            whole.xadd(stream, {"said": text})
                        # redis-py would put all messages into an error that it raises itself.
                        replies = await whole.execute(raise_on_error=False)
                    if failed := next((each for each in replies if isinstance(each, Exception)), None):
                        raise failed
                    is_sent = True
                except REDIS_FAILURES as error:
                    log.warning("fleet message not sent", extra={"fault": str(error)})
                    await asyncio.sleep(_SAY_AGAIN_S)
            for _ in waiting:
                self._outbox.task_done()

    def _receive(self, text: bytes) -> Awaitable[None] | None:
        try:
            message: HostMessage = read(HostMessage, text, self.connection.key, to=self.name)
        except Forged as error:
            log.warning("fleet message dropped", extra={"reason": str(error)})
            return None
        call = self._calls.get(message.call)
        match message.kind:
            case "call":
                return self._take(message.body)
            case "cancel" if call is not None:
                call.cancel()
            case "answer" if call is not None:
                call.answered(message.body)
            case "ended" if isinstance(session := message.body.get("session"), str):
                # Beside the calls of others, which do not wait for it.
                ending = asyncio.create_task(self.toolset.end_session(session))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        return None

    async def _beat(self) -> None:
        """Report the status every second; end all calls before hosts take this node for dead."""
        while True:
            leave_if_cancelled()
            began = time.monotonic()
            try:
                # A machine that was frozen may have been taken for dead meanwhile.
                if began - self._reported_at < FENCE_S:
                    async with asyncio.timeout(FENCE_S / 2):
                        await self._report()
                    self._reported_at = began
            except REDIS_FAILURES as error:
                log.warning("redis not reachable", extra={"fault": str(error), "node": self.name})
            if time.monotonic() - self._reported_at > FENCE_S - _BEAT_S:
                log.error("fleet node fenced", extra={"calls": len(self._calls)})
                self.fenced.set()
                for call in self._calls.values():
                    call.cancel()
                return
            await asyncio.sleep(_BEAT_S)

    async def _report(self) -> None:
        """Write the status, take this node's share of limits, and end calls whose host is gone.

        Raises:
            REDIS_FAILURES: Redis does not answer.
        """
        keys, calls = self.connection.keys, list(self._calls.values())
        hosts = sorted({call.record.host for call in calls})
        self._beats += 1
        status = NodeStatus(
            beat=self._beats,
            capacity=self.toolset.settings.max_calls,
            calls={call.record.call: call.has_started for call in calls},
        )
        mine, nodes = keys("node", self.name), keys("nodes", self.release)
        sealed = self.connection.key.seal(status.model_dump(), to=mine)
        async with self.connection.redis.pipeline(transaction=False) as together:
            # A Redis without memory still renews what it has.
            together.pexpire(mine, int(NODE_TTL_S * 1000))
            together.set(mine, sealed, px=int(NODE_TTL_S * 1000))
            (together.srem if self._is_draining else together.sadd)(nodes, self.name)
            together.smembers(nodes)
            for host in hosts:
                # Of a host that is gone nothing stays.
                together.pexpire(keys("said", host), _HOUR_MS)
                together.exists(keys("host", host))
            _, _, _, members, *replies = await together.execute(raise_on_error=False)
        if isinstance(members, Exception):
            raise members
        names = sorted({self.name, *(name.decode(errors="replace") for name in members)})
        self.toolset.rates.limits = {
            name: share_of(limit, rank=names.index(self.name), nodes=len(names))
            for name, limit in self.toolset.settings.call_limits.items()
        }
        is_there = dict(zip(hosts, replies[1::2], strict=True))
        for call in calls:
            call.silent = 0 if is_there[call.record.host] == 1 else call.silent + 1
            if call.silent > _SILENT_BEATS:
                log.info("fleet call abandoned", extra={"call": call.record.call})
                call.cancel()

    async def _end(self, work: list["asyncio.Task[Any]"]) -> None:
        """End what is under way, and leave the fleet."""
        running = [call.task for call in self._calls.values() if call.task is not None]
        for call in self._calls.values():
            call.cancel()
        if running:
            await asyncio.wait(running, timeout=_LAST_WORDS_S)
        if not self.fenced.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._outbox.join()
        for task in work:
            task.cancel()
        await asyncio.wait(work, timeout=_LEAVE_S)
        if self.fenced.is_set():
            # What it has in Redis ends by itself.
            return
        keys = self.connection.keys
        with contextlib.suppress(*REDIS_FAILURES):
            await self.connection.redis.srem(keys("nodes", self.release), self.name)
            await self.connection.redis.delete(keys("node", self.name), keys("told", self.name))
