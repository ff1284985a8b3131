"""A worker node: takes calls from its docket, runs them in the sandbox of its machine, and says how it went.

Its life is that of one name in Redis. It says every second that it is there; where it could not say so for
`FENCE_S`, it ends all its calls, before any host may take it for dead and give them to others. Then it begins
a new life, with a new name and nothing of the old one.

Source: `docs/decisions/0044-fleet-over-redis.md`.
"""

import asyncio
import contextlib
import contextvars
import logging
import math
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
from runner.fleet.connection import REDIS_FAILURES, TASK, FleetConnection, leave_if_cancelled
from runner.fleet.far_state import FarState
from runner.fleet.lost_nodes import FENCE_S, TTL_S
from runner.fleet.lua import BEGIN
from runner.fleet.messages import WIRE_VERSION, HostMessage, NodeMessage, SentCall, read
from runner.fleet.node_call import NodeCall
from runner.fleet.seal import Forged
from runner.fleet.shared_events import SharedEvents
from runner.toolset.toolset import Toolset

__all__ = ["Node"]

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_BEAT_S = 1.0
_SAY_AGAIN_S = 0.2
_MOST_WAITING = 2000
_MOST_NOTE_BYTES = 1024 * 1024
# A host renews its calls every 2 s, and notes again what Redis has lost of them: where it has had time for
# that, it is gone. Where Redis lost this node's own name, too, hosts have had an outage, and take longer.
_SILENT_BEATS, _SILENT_BEATS_IF_LOST = 3, 6
_LOST_S = 10.0
_DOCKET_WAITS_S = 0.5
_LAST_WORDS_S = 5.0
_LEAVE_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One life of a worker node.

    Attributes:
        toolset: What executes its calls.
        connection: The way to Redis.
        release: What it serves.
        name: What it is called in the fleet.
        fenced: Set once it has heard nothing of Redis for too long.
    """

    toolset: Toolset
    connection: FleetConnection
    release: str
    name: str
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: dict[str, NodeCall] = field(default_factory=dict)
    _outbox: "asyncio.Queue[tuple[str, NodeMessage]]" = field(
        default_factory=lambda: asyncio.Queue(_MOST_WAITING)
    )
    _state: FarState = field(init=False)
    _is_draining: bool = False
    _heard_at: float = 0.0
    _lost_at: float = -math.inf

    def __post_init__(self) -> None:
        self._state = FarState(
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
            concurrency=2 * toolset.settings.max_calls,
            # Its own messages only: nobody else reads this docket.
            redelivery_timeout=timedelta(minutes=5),
            reconnection_delay=timedelta(seconds=0.5),
            schedule_automatic_tasks=False,
        )
        node._heard_at = time.monotonic()
        await node._register()
        # pydocket leaves in the context in which it was entered, and in no other.
        within = contextvars.copy_context()
        await asyncio.create_task(worker.__aenter__(), context=within)
        work = [
            asyncio.create_task(one)
            for one in (
                worker.run_forever(),
                connection.hear(connection.keys.told(name), node._told),
                node._beat(),
                node._send(),
            )
        ]
        log.info("worker node", extra={"node": name, "release": release})
        shared = SharedEvents(connection=connection, events=toolset.events, source=name)
        # Calls end before it does: a node that is cut off has little time for that.
        async with shared.shared(hears=False):
            try:
                yield node
            finally:
                await node._end(work)
                # Where Redis says nothing, it would wait for that.
                leaving = asyncio.create_task(worker.__aexit__(None, None, None), context=within)
                await asyncio.wait({leaving}, timeout=_LEAVE_S)

    async def drain(self, left_s: float, again: asyncio.Event) -> None:
        """Take no further call, and let those under way end, for so many seconds or until `again` is set."""
        self._is_draining = True
        with contextlib.suppress(*REDIS_FAILURES):
            await self.connection.redis.hset(self.connection.keys.node(self.name), "draining", "1")
        self.toolset.drain.begin(left_s)
        done, hurry = asyncio.create_task(self._idle()), asyncio.create_task(again.wait())
        await asyncio.wait({done, hurry}, timeout=left_s + _LAST_WORDS_S, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            self.toolset.drain.begin(0)
            await asyncio.wait({done}, timeout=_LAST_WORDS_S)
        for task in (done, hurry):
            task.cancel()

    async def _idle(self) -> None:
        """Wait until no call runs and all that was to be said is said."""
        while self._calls:
            await asyncio.wait({call.task for call in self._calls.values() if call.task is not None})
            await asyncio.sleep(0)
        await self._outbox.join()

    async def _register(self) -> None:
        keys, capacity = self.connection.keys, self.toolset.settings.max_calls
        facts: dict[Any, Any]
        facts = {"release": self.release, "capacity": capacity, "draining": int(self._is_draining)}
        async with self.connection.redis.pipeline() as whole:
            whole.hset(keys.node(self.name), mapping=facts)
            whole.pexpire(keys.node(self.name), int(TTL_S * 1000))
            whole.sadd(keys.nodes(self.release), self.name)
            await whole.execute()

    async def _taken(self, record: str) -> None:
        """Take a call out of the docket. What becomes of it, its host is told, and not the docket."""
        try:
            sent: SentCall = read(SentCall, record.encode(), self.connection.key, to=self.name)
        except Forged as error:
            log.warning("a record was dropped", extra={"reason": str(error)})
            return
        is_ours = sent.version == WIRE_VERSION and sent.release == self.release
        is_known = sent.call in self._calls
        if not is_ours or self._is_draining or is_known or self.fenced.is_set():
            await self._say(sent.host, NodeMessage(call=sent.call, epoch=sent.epoch, kind="refused"))
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
        key = self.connection.keys.call(record.call)
        try:
            return bool(await BEGIN.run(self.connection.redis, [key], self.name, record.epoch))
        except REDIS_FAILURES as error:
            # Perhaps it is noted as begun; then its host will say that nobody knows.
            log.warning("a call could not begin", extra={"call": record.call, "fault": str(error)})
            return False

    async def _say(self, host: str, message: NodeMessage) -> None:
        if message.kind == "note" and len(str(message.body)) > _MOST_NOTE_BYTES:
            return
        await self._outbox.put((host, message))

    async def _send(self) -> None:
        """Send what is to be said, in order; the end of a call as often as it takes."""
        while True:
            leave_if_cancelled()
            waiting = [await self._outbox.get()]
            while not self._outbox.empty():
                waiting.append(self._outbox.get_nowait())
            sealed = [
                (self.connection.keys.said(host), self.connection.key.seal(said.model_dump(), to=host))
                for host, said in waiting
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
            # All or none, so that nothing is said twice.
            async with self.connection.redis.pipeline(transaction=True) as whole:
                for stream, text in sealed:
                    whole.xadd(stream, {"said": text})
                await whole.execute()
        except REDIS_FAILURES as error:
            log.warning("fleet message not sent", extra={"fault": str(error)})
            return False
        return True

    def _told(self, text: bytes) -> "asyncio.Future[None] | None":
        try:
            message: HostMessage = read(HostMessage, text, self.connection.key, to=self.name)
        except Forged as error:
            log.warning("a message was dropped", extra={"reason": str(error)})
            return None
        call = self._calls.get(message.call)
        match message.kind:
            case "cancel" if call is not None and call.task is not None:
                call.task.cancel()
            case "answer" if call is not None:
                call.answered(message.body)
            case "ended" if isinstance(session := message.body.get("session"), str):
                return asyncio.ensure_future(self.toolset.end_session(session))
        return None

    async def _beat(self) -> None:
        """Renew the lease of this node, and end calls without a host; end all of them in time."""
        while True:
            leave_if_cancelled()
            began = time.monotonic()
            try:
                async with asyncio.timeout(FENCE_S / 2):
                    await self._look_around()
                self._heard_at = began
            except REDIS_FAILURES as error:
                log.warning("redis is out of reach", extra={"fault": str(error), "node": self.name})
            if time.monotonic() - self._heard_at > FENCE_S - _BEAT_S:
                log.error("fleet node fenced", extra={"calls": len(self._calls)})
                self.fenced.set()
                for call in self._calls.values():
                    if call.task is not None:
                        call.task.cancel()
                return
            await asyncio.sleep(_BEAT_S)

    async def _look_around(self) -> None:
        keys, calls = self.connection.keys, list(self._calls.values())
        async with self.connection.redis.pipeline(transaction=False) as all_of_them:
            all_of_them.pexpire(keys.node(self.name), int(TTL_S * 1000))
            for host in {call.record.host for call in calls}:
                # Of a host that is gone nothing stays.
                all_of_them.pexpire(keys.said(host), _HOUR_MS)
            for call in calls:
                all_of_them.hmget(keys.call(call.record.call), "state", "node", "epoch")
            is_known, *replies = await all_of_them.execute()
            states = replies[len(replies) - len(calls) :]
        if not is_known:
            self._lost_at = time.monotonic()
            await self._register()
        for call, state in zip(calls, states, strict=True):
            self._judge(call, state)
            await call.tell_how_far()

    def _judge(self, call: NodeCall, state: list[bytes | None]) -> None:
        """End a call that its host has taken back, or whose host is gone."""
        is_mine = state[1:] == [self.name.encode(), str(call.record.epoch).encode()]
        call.silent = call.silent + 1 if state[0] is None else 0
        if call.task is None or call.task.done():
            return
        is_revoked = state[0] is not None and (not is_mine or state[0] == b"revoked")
        was_lost = time.monotonic() - self._lost_at < _LOST_S
        if is_revoked or call.silent > (_SILENT_BEATS_IF_LOST if was_lost else _SILENT_BEATS):
            log.info("fleet call abandoned", extra={"call": call.record.call})
            call.task.cancel()

    async def _end(self, work: list["asyncio.Task[Any]"]) -> None:
        """End what is under way, and leave the fleet."""
        running = [call.task for call in self._calls.values() if call.task is not None]
        for task in running:
            task.cancel()
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
            await self.connection.redis.srem(keys.nodes(self.release), self.name)
            await self.connection.redis.delete(
                keys.node(self.name), keys.load(self.name), keys.told(self.name),
                f"{keys.queue(self.name)}:stream",
            )  # fmt: skip
