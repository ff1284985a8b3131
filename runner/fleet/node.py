"""A worker node: takes calls from its docket, runs them in the sandbox of its machine, and reports their end.

A node lives as long as its name in Redis. Every second it writes its status; where it could not do so for
`FENCE_S`, it ends all its calls, before any host takes it for dead and gives them to others. Then it begins a
new life, with a new name and nothing of the old one.

Source: `docs/decisions/0044-fleet-over-redis.md`.
"""

import asyncio
import contextlib
import contextvars
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from docket import Worker

from runner.files.sessions import Unkept
from runner.fleet.connection import (
    FENCE_S,
    NODE_TTL_S,
    REDIS_FAILURES,
    TASK,
    FleetConnection,
    leave_if_cancelled,
)
from runner.fleet.messages import WIRE_VERSION, HostMessage, NodeMessage, NodeStatus, SentCall, read
from runner.fleet.node_call import NodeCall
from runner.fleet.placing import share_of
from runner.fleet.seal import Forged
from runner.fleet.shared_events import SharedEvents
from runner.fleet.shared_state import SharedState
from runner.toolset.toolset import Toolset

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
_DOCKET_WAITS_S = 0.5
_LAST_WORDS_S = 5.0
_LEAVE_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One life of a worker node.

    Attributes:
        toolset: What executes its calls.
        connection: The way to Redis.
        release: The release that it serves.
        name: Its name in the fleet.
        fenced: Set once Redis has not answered for too long.
    """

    toolset: Toolset
    connection: FleetConnection
    release: str
    name: str
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: dict[str, NodeCall] = field(default_factory=dict)
    _known: dict[str, None] = field(default_factory=dict)
    _outbox: "asyncio.Queue[tuple[str, NodeMessage]]" = field(
        default_factory=lambda: asyncio.Queue(_MOST_WAITING)
    )
    _state: SharedState = field(init=False)
    _is_draining: bool = False
    _reported_at: float = 0.0
    _beats: int = 0

    def __post_init__(self) -> None:
        self._state = SharedState(
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
        docket = await connection.docket(name)
        docket.register(node._taken, names=[TASK])
        worker = Worker(
            docket,
            name=name,
            # They wait for their turn in the queue of the toolset, which bounds them.
            concurrency=_MOST_WAITING,
            # Its own messages only: nobody else reads this docket.
            redelivery_timeout=timedelta(minutes=5),
            reconnection_delay=timedelta(seconds=0.5),
            schedule_automatic_tasks=False,
        )
        node._reported_at = time.monotonic()
        await node._report()
        # pydocket leaves in the context in which it was entered, and in no other.
        within = contextvars.copy_context()
        await asyncio.create_task(worker.__aenter__(), context=within)
        work = [
            asyncio.create_task(one)
            for one in (
                worker.run_forever(),
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
                # It would wait for a Redis that does not answer.
                leaving = asyncio.create_task(worker.__aexit__(None, None, None), context=within)
                await asyncio.wait({leaving}, timeout=_LEAVE_S)

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

    async def _taken(self, record: str) -> None:
        """Take a call out of the docket. Its outcome goes to its host, not to the docket."""
        try:
            sent: SentCall = read(SentCall, record.encode(), self.connection.key, to=self.name)
        except Forged as error:
            log.warning("fleet record dropped", extra={"reason": str(error)})
            return
        if sent.call in self._known:
            return
        self._known[sent.call] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        is_ours = sent.version == WIRE_VERSION and sent.release == self.release
        if not is_ours or self._is_draining or self.fenced.is_set():
            await self._say(sent.host, NodeMessage(call=sent.call, kind="refused"))
            return
        call = NodeCall(
            record=sent, toolset=self.toolset, begin=self._begins, send=self._say, state=self._state
        )
        self._calls[sent.call] = call
        call.task = asyncio.create_task(call.run())
        call.task.add_done_callback(lambda task: self._over(sent.call, task))
        # The docket notes that it is done with it in ten commands, for which a short call need not wait.
        await asyncio.wait({call.task}, timeout=_DOCKET_WAITS_S)

    def _over(self, call: str, task: "asyncio.Task[None]") -> None:
        self._calls.pop(call, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("fleet call failed", exc_info=fault, extra={"call": call})

    async def _begins(self, record: SentCall) -> bool:
        """Return whether a call may begin: its host has not taken it back, and cannot any more."""
        try:
            return await self.connection.redis.delete(self.connection.keys("begin", record.call)) == 1
        except REDIS_FAILURES as error:
            log.warning("fleet call not started", extra={"call": record.call, "fault": str(error)})
            return False

    async def _say(self, host: str, message: NodeMessage) -> None:
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
            while not await self._sent(sealed):
                leave_if_cancelled()
                await asyncio.sleep(_SAY_AGAIN_S)
            for _ in waiting:
                self._outbox.task_done()

    async def _sent(self, sealed: list[tuple[str, str]]) -> bool:
        try:
            if len(sealed) == 1:
                ((stream, text),) = sealed
                await self.connection.redis.xadd(stream, {"said": text})
                return True
            # All or none, so that a retry sends no message twice.
            async with self.connection.redis.pipeline(transaction=True) as whole:
                for stream, text in sealed:
                    whole.xadd(stream, {"said": text})
                await whole.execute()
        except REDIS_FAILURES as error:
            log.warning("fleet message not sent", extra={"fault": str(error)})
            return False
        return True

    def _receive(self, text: bytes) -> "asyncio.Future[None] | None":
        try:
            message: HostMessage = read(HostMessage, text, self.connection.key, to=self.name)
        except Forged as error:
            log.warning("fleet message dropped", extra={"reason": str(error)})
            return None
        call = self._calls.get(message.call)
        match message.kind:
            case "cancel" if call is not None:
                call.cancel()
            case "answer" if call is not None:
                call.answered(message.body)
            case "ended" if isinstance(session := message.body.get("session"), str):
                return asyncio.ensure_future(self.toolset.end_session(session))
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
            await self.connection.redis.delete(
                keys("node", self.name), keys("told", self.name), f"{keys('queue', self.name)}:stream"
            )
