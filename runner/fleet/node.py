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
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.artifacts.accept import NEVER_INLINE
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
    problem_of,
    redis_key,
)
from runner.fleet.messages import (
    NOTICE,
    TO_NODE,
    Answer,
    Cancel,
    NodeMessage,
    NodeStatus,
    SentCall,
    SessionEnd,
)
from runner.fleet.placing import share_of
from runner.fleet.results import failure_of, parts_of, report
from runner.fleet.shared_events import SharedEvents
from runner.fleet.shared_state import SharedState
from runner.formats.json_walks import least_chars
from runner.steps.listener import CLIENT_REQUESTS, LOG_LEVELS, CallListener, Nobody
from runner.steps.request import Request
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.worker.wire import WireError

__all__ = ["Node"]

log = logging.getLogger(__name__)

_BEAT_S = 1.0
_SEND_AGAIN_S = 0.2
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
        task: The task that executes it.
        silent: In how many beats in a row its host was not there.
        has_started: Whether its code has started.
    """

    record: SentCall
    node: "Node"
    task: "asyncio.Task[dict[str, Any]]" = field(init=False)
    silent: int = 0
    has_started: bool = False
    _questions: "dict[str, asyncio.Future[Mapping[str, object]]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task = asyncio.create_task(self._execute())

    async def serve(self) -> None:
        """Send the end of the call to its host, however it ended."""
        await asyncio.wait({self.task})
        end: dict[str, Any] | None
        try:
            end = self.task.result()
        except Unwanted:
            end = None
        except asyncio.CancelledError:
            # For a host that has cancelled it this is too late; another host gets it when this node stops.
            end = failure_of(cancelled()) if self.has_started else None
        except Exception as error:  # noqa: BLE001 - whatever it is, the host gets an error of the contract
            end = failure_of(unexpected(error, call=self.record.call))
        await (self.say("refused") if end is None else self.say("end", end))

    async def _execute(self) -> dict[str, Any]:
        """Execute the call and return the report of its end.

        Raises:
            Unwanted: It may not begin.
        """
        record, toolset = self.record, self.node.toolset
        is_tool = record.method == "tools/call"
        request = Request(
            user=User(record.user, record.session),
            method=record.method,
            params=record.params,
            facts=record.facts,
            client=Nobody(),
            inline_max_bytes=NEVER_INLINE,
            # All levels: the host filters them for its client.
            levels=LOG_LEVELS,
            is_awaited=record.is_awaited,
            id=record.call.partition(".")[0],
            begins=self._begins,
        )
        listener = _RemoteListener(
            client=request.client,
            params=request.params,
            levels=request.levels,
            deadlines=toolset.effective(request.tool if is_tool else None).deadlines,
            user=request.user.segment,
            state=toolset.state,
            call=self,
        )
        await self.node.state.fetch(request.user.segment)
        try:
            if is_tool:
                parts = parts_of(await execute_admitted(toolset, request, listener))
            else:
                parts = {"answer": await relay(toolset, request, listener=listener)}
        except WireError as error:
            parts = {"wire_error": error.error}
        except CallError as error:
            parts = parts_of(error)
        if not self.has_started:
            # It has failed before. Nobody else would delete the key.
            await self.node.begins(record)
        await self.node.state.store(request.user.segment)
        return report(request, **parts)

    def answered(self, answer: Answer) -> None:
        """Pass on the answer of the client."""
        question = self._questions.pop(answer.number, None)
        if question is not None and not question.done():
            question.set_result(answer.reply)

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
        """Send the host a message; a note that is too long is dropped."""
        if kind == "note" and least_chars(body, _MOST_NOTE_BYTES) > _MOST_NOTE_BYTES:
            return
        message = NodeMessage(call=self.record.call, kind=kind, body=dict(body or {}))
        await self.node.send(self.record.host, message)


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
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _is_draining: bool = False
    _reported_at: float = 0.0
    _beats: int = 0

    def __post_init__(self) -> None:
        self.state = SharedState(
            redis=self.connection.redis,
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
            asyncio.create_task(connection.consume(name, TO_NODE.validate_python, node._receive)),
            asyncio.create_task(node._beat()),
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
                call.task.cancel()
        done, hurry = asyncio.create_task(self._idle()), asyncio.create_task(again.wait())
        await asyncio.wait({done, hurry}, timeout=left_s + _LAST_WORDS_S, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            self.toolset.drain.begin(0)
            await asyncio.wait({done}, timeout=_LAST_WORDS_S)
        for task in (done, hurry):
            task.cancel()

    async def _idle(self) -> None:
        """Wait until no call runs and every message is sent."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _receive(self, message: SentCall | Cancel | Answer | SessionEnd) -> None:
        match message:
            case SentCall() if message.call not in self._known:
                await self._take(message)
            case SessionEnd():
                # Beside the calls of others, which do not wait for it.
                self._start(self.toolset.end_session(message.session))
            case Cancel() if message.call in self._calls:
                self._calls[message.call].task.cancel()
            case Answer() if message.call in self._calls:
                self._calls[message.call].answered(message)

    async def _take(self, sent: SentCall) -> None:
        """Begin a call, or refuse it."""
        self._known[sent.call] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        # They wait for their turn in the queue of the toolset, which bounds those of a user.
        if len(self._calls) >= _MOST_WAITING or self._is_draining or self.fenced.is_set():
            await self.send(sent.host, NodeMessage(call=sent.call, kind="refused"))
            return
        call = self._calls[sent.call] = NodeCall(record=sent, node=self)
        self._start(self._serve(call))

    async def _serve(self, call: NodeCall) -> None:
        try:
            await call.serve()
        finally:
            del self._calls[call.record.call]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that this node waits for when it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("fleet call failed", exc_info=fault)

    async def begins(self, record: SentCall) -> bool:
        """Return whether a call may begin: its host has not taken it back, and cannot any more."""
        try:
            return await self.connection.redis.delete(redis_key("begin", record.call)) == 1
        except REDIS_FAILURES as error:
            log.warning("fleet call not started", extra={"call": record.call, "fault": str(error)})
            return False

    async def send(self, host: str, message: NodeMessage) -> None:
        """Send a host a message; try again until Redis accepts it, or this node has lost Redis."""
        while not self.fenced.is_set():
            try:
                await self.connection.send(host, message)
            except REDIS_FAILURES as error:
                log.warning("fleet message not sent", extra={"fault": problem_of(error)})
                await asyncio.sleep(_SEND_AGAIN_S)
            else:
                return

    async def _beat(self) -> None:
        """Report the status every second; end all calls before hosts take this node for dead."""
        while (began := time.monotonic()) < (ends := self._reported_at + FENCE_S):
            leave_if_cancelled()
            try:
                # A machine that was frozen may have been taken for dead meanwhile.
                async with asyncio.timeout(ends - began):
                    await self._report()
                self._reported_at = began
            except REDIS_FAILURES as error:
                facts = {"fault": problem_of(error), "node": self.name}
                log.warning("redis not reachable", extra=facts)
            await asyncio.sleep(min(_BEAT_S, self._reported_at + FENCE_S - time.monotonic()))
        log.error("fleet node fenced", extra={"calls": len(self._calls)})
        self.fenced.set()
        for call in self._calls.values():
            call.task.cancel()

    async def _report(self) -> None:
        """Write the status, take this node's share of limits, and end calls whose host is gone.

        Raises:
            REDIS_FAILURES: Redis does not answer.
        """
        calls = list(self._calls.values())
        hosts = sorted({call.record.host for call in calls})
        self._beats += 1
        status = NodeStatus(
            beat=self._beats,
            capacity=self.toolset.settings.max_calls,
            calls={call.record.call: call.has_started for call in calls},
        )
        mine, nodes = redis_key("node", self.name), redis_key("nodes", self.release)
        sealed = await self.connection.sealed(status, to=mine, is_urgent=True)
        async with self.connection.redis.pipeline(transaction=False) as together:
            # A Redis without memory still renews what it has.
            together.pexpire(mine, int(NODE_TTL_S * 1000))
            together.set(mine, sealed, px=int(NODE_TTL_S * 1000))
            (together.srem if self._is_draining else together.sadd)(nodes, self.name)
            together.smembers(nodes)
            for host in hosts:
                together.exists(redis_key("host", host))
            _, _, _, members, *replies = await together.execute(raise_on_error=False)
        if isinstance(members, Exception):
            raise members
        names = sorted({self.name, *(name.decode(errors="replace") for name in members)})
        self.toolset.rates.limits = {
            name: share_of(limit, rank=names.index(self.name), nodes=len(names))
            for name, limit in self.toolset.settings.call_limits.items()
        }
        is_there = dict(zip(hosts, replies, strict=True))
        for call in calls:
            call.silent = 0 if is_there[call.record.host] == 1 else call.silent + 1
            if call.silent > _SILENT_BEATS:
                log.info("fleet call abandoned", extra={"call": call.record.call})
                call.task.cancel()

    async def _end(self, work: list["asyncio.Task[Any]"]) -> None:
        """End what is under way, and leave the fleet."""
        for call in self._calls.values():
            call.task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._idle()
        work += self._tasks
        for task in work:
            task.cancel()
        await asyncio.wait(work, timeout=_LEAVE_S)
        if self.fenced.is_set():
            # What it has in Redis ends by itself.
            return
        with contextlib.suppress(*REDIS_FAILURES):
            await self.connection.redis.srem(redis_key("nodes", self.release), self.name)
            await self.connection.redis.delete(redis_key("node", self.name), redis_key("stream", self.name))
