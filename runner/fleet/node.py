"""A worker node: reads calls from its stream, runs them in the sandbox of its machine, and reports their end.

A node writes its status to Redis every second. If it cannot for `FENCE_S`, it is fenced: it cancels all its
calls, before any host considers it dead and sends them to other nodes. The process then starts a new node,
with a new name and none of the old state.

Source: `docs/decisions/0044-fleet-over-redis.md`.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.artifacts.accept import NEVER_INLINE
from runner.call import Completed, execute_admitted, relay
from runner.contract.error_messages import cancelled
from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError
from runner.files.sessions import Unkept
from runner.fleet.connection import (
    FENCE_S,
    NODE_TTL_S,
    REDIS_FAILURES,
    FleetConnection,
    problem_of,
    redis_key,
    repeat,
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
from runner.fleet.results import report
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
# Ids of calls already received: Redis may deliver one again after a crash lost its latest writes.
_MOST_KNOWN = 10_000
# A host renews its heartbeat twice a second: one missing for more beats than this is dead.
_SILENT_BEATS = 5
_LAST_WORDS_S = 5.0
_LEAVE_S = 1.0


class Unwanted(Exception):
    """A call may no longer start: its host has abandoned it, or sent it to another node."""


@dataclass(slots=True, kw_only=True, eq=False)
class NodeCall(CallListener):
    """One call; forwards its worker's messages for the client to the call's host.

    Attributes:
        record: The message with which its host sent it.
        node: Its node.
        task: The task that executes it.
        silent: Number of consecutive beats without a heartbeat of its host.
        has_started: Whether its code has started.
        questions: Requests to its client that await an answer, by their number.
    """

    record: SentCall
    node: "Node"
    task: "asyncio.Task[dict[str, Any]]" = field(init=False)
    silent: int = 0
    has_started: bool = False
    questions: "dict[str, asyncio.Future[Mapping[str, object]]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task = asyncio.create_task(self._execute())

    async def notify(self, value: Mapping[str, object]) -> None:
        """Send a worker's notification to the host, which filters it for the client."""
        value = self.masked(value)
        # Recorded here too: a timeout error quotes the tool's last message.
        await CallListener.notify(self, value)
        await self._send("note", {"method": value.get("method"), "params": value.get("params")})

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a worker's request, or forward it to the client."""
        if value.get("method") not in CLIENT_REQUESTS:
            return await CallListener.request(self, value)
        value, number = self.masked(value), secrets.token_hex(8)
        question: asyncio.Future[Mapping[str, object]] = asyncio.get_running_loop().create_future()
        self.questions[number] = question
        try:
            body = {"method": value["method"], "params": value.get("params"), "number": number}
            await self._send("ask", body)
            return await question
        finally:
            del self.questions[number]

    async def tell(self, text: str) -> None:
        """Send a notice to the client through the host."""
        self.notices.append(text)
        await self._send("note", {"method": NOTICE, "params": {"message": text}})

    async def serve(self) -> None:
        """Send the end of the call to its host, however it ended."""
        await asyncio.wait({self.task})
        end: dict[str, Any] | None
        try:
            end = self.task.result()
        except Unwanted:
            end = None
        except asyncio.CancelledError:
            # A host that cancelled the call ignores this; when this node stops, other hosts need it.
            end = report(cancelled()) if self.has_started else None
        except Exception as error:  # noqa: BLE001 - whatever it is, the host gets an error of the contract
            end = report(unexpected(error, call=self.record.call))
        try:
            await (self._send("refused") if end is None else self._send("end", end))
        finally:
            del self.node.calls[self.record.call]

    async def _execute(self) -> dict[str, Any]:
        """Execute the call and return the report of its end.

        Raises:
            Unwanted: It may no longer start.
        """
        record, toolset, state = self.record, self.node.toolset, self.node.state
        request = Request(
            user=User(record.user, record.session),
            method=record.method,
            params=record.params,
            facts=record.facts,
            client=self.client,
            inline_max_bytes=NEVER_INLINE,
            levels=self.levels,
            is_awaited=record.is_awaited,
            id=record.call.partition(".")[0],
            begins=self._begins,
        )
        await state.fetch(self.user)
        end: Completed | CallError | WireError | Mapping[str, Any]
        try:
            if record.method == "tools/call":
                end = await execute_admitted(toolset, request, self)
            else:
                end = await relay(toolset, request, listener=self)
        except (CallError, WireError) as error:
            end = error
        if not self.has_started:
            # It failed before its start, and only this node would delete the `begin` key.
            await self._revoke_start()
        await state.store(self.user)
        return report(end, request)

    async def _begins(self) -> None:
        """Claim the right to start; only once, even if it starts twice because its zygote died.

        Raises:
            Unwanted: It may no longer start.
        """
        if not self.has_started and not await self._revoke_start():
            raise Unwanted(self.record.call)
        self.has_started = True

    async def _revoke_start(self) -> bool:
        """Delete the `begin` key, so that the host cannot take the call back; return whether it may start."""
        try:
            return await self.node.connection.revoke_start(self.record.call)
        except REDIS_FAILURES as error:
            log.warning("fleet call not started", extra={"call": self.record.call, "fault": str(error)})
            return False

    async def _send(
        self, kind: Literal["note", "ask", "end", "refused"], body: Mapping[str, Any] | None = None
    ) -> None:
        """Send the host a message; drop a note that is too long."""
        if kind == "note" and least_chars(body, _MOST_NOTE_BYTES) > _MOST_NOTE_BYTES:
            return
        message = NodeMessage(call=self.record.call, kind=kind, body=dict(body or {}))
        await self.node.send(self.record.host, message)


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A worker node, until it is stopped or fenced.

    Attributes:
        toolset: Executes its calls.
        connection: Connection to Redis.
        release: The release that it serves.
        name: Its name in the fleet.
        fenced: Set once Redis has not answered for too long.
        state: Session state of its users.
        calls: Its calls, each until its end was sent to the host.
    """

    toolset: Toolset
    connection: FleetConnection
    release: str
    name: str
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    state: SharedState = field(init=False)
    calls: dict[str, NodeCall] = field(default_factory=dict)
    _known: dict[str, None] = field(default_factory=dict)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _is_draining: bool = False
    _beats: int = 0

    def __post_init__(self) -> None:
        self.state = SharedState(
            redis=self.connection.redis,
            state=self.toolset.state,
            stay_s=self.toolset.settings.session_idle_s,
        )
        # The host of each call keeps its session in use.
        self.toolset.share(Unkept())

    @classmethod
    @asynccontextmanager
    async def open(cls, toolset: Toolset, connection: FleetConnection, release: str) -> AsyncIterator["Node"]:
        """Accept calls until the block ends."""
        name = f"{socket.gethostname()[:40]}-{secrets.token_hex(6)}"
        node = cls(toolset=toolset, connection=connection, release=release, name=name)
        # If Redis is unreachable again, the fence ends this node; an error would end the process.
        with contextlib.suppress(*REDIS_FAILURES):
            await node._report()
        work = [
            asyncio.create_task(connection.consume(name, TO_NODE.validate_python, node._receive)),
            asyncio.create_task(node._beat()),
        ]
        log.info("worker node started", extra={"node": name, "release": release})
        shared = SharedEvents(connection=connection, events=toolset.events, source=name)
        # Outermost, so that calls end first: a fenced node has little time to cancel them.
        async with shared.shared(subscribe=False):
            try:
                yield node
            finally:
                await node._end(work)

    async def drain(self, left_s: float, again: asyncio.Event) -> None:
        """Refuse new calls and let running calls finish, for `left_s` seconds or until `again` is set.

        Queued calls are returned to their hosts.
        """
        self._is_draining = True
        with contextlib.suppress(*REDIS_FAILURES):
            await self._report()
        self.toolset.drain.begin(left_s)
        for call in self.calls.values():
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
                # In its own task, so that messages about calls do not wait for it.
                self._start(self.toolset.end_session(message.session))
            case Cancel() if message.call in self.calls:
                self.calls[message.call].task.cancel()
            case Answer() if message.call in self.calls:
                question = self.calls[message.call].questions.get(message.number)
                if question is not None and not question.done():
                    question.set_result(message.reply)

    async def _take(self, sent: SentCall) -> None:
        """Start a call, or refuse it."""
        self._known[sent.call] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        # Calls wait in the queue of the toolset, which limits the calls of each user.
        if len(self.calls) >= _MOST_WAITING or self._is_draining or self.fenced.is_set():
            await self.send(sent.host, NodeMessage(call=sent.call, kind="refused"))
            return
        tool = str(sent.params.get("name")) if sent.method == "tools/call" else None
        call = self.calls[sent.call] = NodeCall(
            client=Nobody(),
            params=sent.params,
            # All of them: the host filters messages for its client.
            levels=LOG_LEVELS,
            deadlines=self.toolset.effective(tool).deadlines,
            user=User(sent.user, sent.session).segment,
            state=self.toolset.state,
            record=sent,
            node=self,
        )
        self._start(call.serve())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that this node waits for when it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("fleet call failed", exc_info=fault)

    async def send(self, host: str, message: NodeMessage) -> None:
        """Send a host a message; retry until Redis accepts it, or this node is fenced."""
        while not self.fenced.is_set():
            try:
                await self.connection.send(host, message)
            except REDIS_FAILURES as error:
                log.warning("fleet message not sent", extra={"fault": problem_of(error)})
                await asyncio.sleep(_SEND_AGAIN_S)
            else:
                return

    async def _beat(self) -> None:
        """Report the status every second; cancel all calls before hosts consider this node dead."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            # Counted from before the request: after a late reply, hosts may already consider this node dead.
            async with asyncio.timeout(FENCE_S) as fence:

                async def report_status() -> None:
                    began = loop.time()
                    await self._report()
                    fence.reschedule(began + FENCE_S)

                await repeat(report_status, pause_s=_BEAT_S)
        log.error("fleet node fenced", extra={"calls": len(self.calls)})
        self.fenced.set()
        for call in self.calls.values():
            call.task.cancel()

    async def _report(self) -> None:
        """Write the status, update this node's share of limits, and cancel calls whose host is dead.

        Raises:
            REDIS_FAILURES: Redis does not answer.
        """
        calls = list(self.calls.values())
        hosts = sorted({call.record.host for call in calls})
        self._beats += 1
        status = NodeStatus(
            beat=self._beats,
            capacity=self.toolset.settings.max_calls,
            calls={call.record.call: call.has_started for call in calls},
        )
        mine, nodes = redis_key("node", self.name), redis_key("nodes", self.release)
        # Not in a thread: those may be busy with results, and the number of calls limits its length.
        sealed = self.connection.key.seal(status.model_dump(), to=mine)
        async with self.connection.redis.pipeline(transaction=False) as together:
            # A Redis that is out of memory refuses SET, but not PEXPIRE.
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
        """Cancel all calls, and leave the fleet."""
        for call in self.calls.values():
            call.task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._idle()
        work += self._tasks
        for task in work:
            task.cancel()
        await asyncio.wait(work, timeout=_LEAVE_S)
        if self.fenced.is_set():
            # Its keys in Redis expire.
            return
        with contextlib.suppress(*REDIS_FAILURES):
            await self.connection.redis.srem(redis_key("nodes", self.release), self.name)
            await self.connection.redis.delete(redis_key("node", self.name), redis_key("stream", self.name))
