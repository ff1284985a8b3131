"""Places for calls on worker nodes: asked of Redis, waited for where there is none, and given back.

What becomes free is said to every host, with whose turn it is: each wakes the calls that may have it and no
others, since a thousand that ask again at once keep Redis from its work. What was said may be lost, or meant
for a host that is gone: so each host also polls for whose turn it is, once for all its calls.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from runner.errors import CallError
from runner.fleet.connection import REDIS_FAILURES, FleetConnection, leave_if_cancelled, problem_of
from runner.fleet.errors import no_node, no_room, redis_lost
from runner.fleet.far_call import FarCall
from runner.fleet.lua import PLACE, RELEASE, TURNS

__all__ = ["LEASE_S", "NOTE_S", "Placing"]

log = logging.getLogger(__name__)

LEASE_S = 15.0
"""How long a place stays taken whose host says nothing any more, in seconds."""

NOTE_S = 8.0
"""How long a call is noted whose host says nothing any more, in seconds. Its node ends it a few beats later,
so that no process of it is left when its place is given to another one."""

_NODES_S = 10.0
_PLACE_S = 30.0
_LOOK_S = 0.5
# A call that nobody has woken for so long asks all the same.
_LONGEST_S = 10.0
# For how long Redis takes a user to wait who has not asked again.
_WAITS_MS = 2000
# What is full has a number: 0 the nodes, 1 all calls together, where users take turns, 2 another limit.
_OTHER_LIMITS = 2


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """A call that has no place yet.

    Attributes:
        user: Whose it is.
        limit: The set of calls at whose limit it waits; empty where it waits for its user's turn, None as
            long as Redis has not said.
        woken: Set when there may be a place.
    """

    user: str
    limit: str | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, kw_only=True, eq=False)
class Placing:
    """Takes places for the calls of one host, and gives them back.

    Attributes:
        connection: The way to Redis.
        release: What the host serves, as nodes name it.
        host: What the host is called in the fleet.
        stay_s: How long a user stays with a node, in seconds.
    """

    connection: FleetConnection
    release: str
    host: str
    stay_s: float
    # In the order in which they came.
    _waiting: list[_Waiting] = field(default_factory=list)
    _unwanted: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def place(self, call: FarCall) -> None:
        """Wait until a node has a place for a call, and take it.

        Raises:
            CallError: `E_BUSY`: none has, or Redis does not say.
        """
        began = time.monotonic()
        with self._waits(call.request.user.segment) as waiting:
            while True:
                waiting.woken.clear()
                waiting.limit = None
                refusal, patience_s = no_node(self.release), _NODES_S
                try:
                    state, *what = await self._answer(call)
                except REDIS_FAILURES as error:
                    refusal = redis_lost(problem_of(error))
                    await asyncio.sleep(_LOOK_S)
                else:
                    if state == b"placed":
                        call.placed(what[0].decode(), stays=bool(what[1]), now=time.monotonic())
                        call.request.steps.done("place")
                        # Redis has taken the user off those who wait, and knows nothing of their other calls.
                        self._wake([waiting.user], but=waiting)
                        return
                    if state == b"full":
                        refusal, patience_s = no_room(_PLACE_S), _PLACE_S
                        waiting.limit = call.limits[what[0] - 1].key if what[0] >= _OTHER_LIMITS else ""
                left_s = began + patience_s - time.monotonic()
                if left_s < 0:
                    raise refusal
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, _LONGEST_S)):
                        await waiting.woken.wait()

    async def give_back(self, call: FarCall, *, is_over: bool = False) -> None:
        """Give back the places of a call; forget it, where it is over."""
        keys = self.connection.keys
        sets = {limit.key: call.id for limit in call.limits}
        if call.node is not None:
            sets[keys.load(call.node)] = call.id
        waiting, *_ = keys.turns()
        names = [keys.call(call.id), keys.eager, waiting, keys.waits_at, *sets]
        with contextlib.suppress(*REDIS_FAILURES):
            await RELEASE.run(
                self.connection.redis, names, int(is_over), keys.freed, call.node or "", *sets.values()
            )

    async def listen(self) -> None:
        """Receive freed places, and wake waiting calls, while the host lives."""
        while True:
            leave_if_cancelled()
            with contextlib.suppress(*REDIS_FAILURES):
                async with self.connection.reading.pubsub() as channel:
                    await channel.subscribe(self.connection.keys.freed)
                    while True:
                        leave_if_cancelled()
                        message = await channel.get_message(ignore_subscribe_messages=True, timeout=1.0)
                        if message:
                            self._wake(*_freed(message.get("data")))
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Poll for the next turn while calls wait, as long as the host lives."""
        keys = self.connection.keys
        while True:
            leave_if_cancelled()
            await asyncio.sleep(_LOOK_S)
            if not self._waiting:
                continue
            mine = dict.fromkeys(waiting.user for waiting in self._waiting if waiting.limit == "")
            with contextlib.suppress(*REDIS_FAILURES):
                turns, unknown = await TURNS.run(
                    self.connection.redis, [*keys.turns()[:2], keys.eager, keys.waits_at], _WAITS_MS, *mine
                )
                users = [user.decode() for user in (*turns, *unknown)]
                self._wake(users, {waiting.limit for waiting in self._waiting if waiting.limit})

    async def _answer(self, call: FarCall) -> Any:
        """Return what Redis says; give back a place that it gives to a call which is cancelled meanwhile."""
        asking = asyncio.create_task(self._ask(call))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            late = asyncio.create_task(self._unwanted_place(call, asking))
            self._unwanted.add(late)
            late.add_done_callback(self._unwanted.discard)
            raise

    async def _unwanted_place(self, call: FarCall, asking: "asyncio.Task[Any]") -> None:
        with contextlib.suppress(CallError, *REDIS_FAILURES):
            state, *what = await asking
            if state == b"placed":
                call.node = what[0].decode()
                await self.give_back(call, is_over=True)

    async def _ask(self, call: FarCall) -> Any:
        keys, user = self.connection.keys, call.request.user.segment
        names = [
            keys.call(call.id), keys.user(self.release, user), keys.nodes(self.release), *keys.turns(),
            *(limit.key for limit in call.limits),
        ]  # fmt: skip
        arguments: list[str | int] = [
            keys.prefix, call.id, call.epoch, self.host, int(LEASE_S * 1000), int(self.stay_s * 1000), user,
            call.avoided, int(NOTE_S * 1000),
            *(limit.most for limit in call.limits),
        ]  # fmt: skip
        try:
            return await PLACE.run(self.connection.redis, names, *arguments)
        except ResponseError as error:
            raise redis_lost(problem_of(error)) from error

    @contextmanager
    def _waits(self, user: str) -> Iterator[_Waiting]:
        waiting = _Waiting(user=user)
        self._waiting.append(waiting)
        try:
            yield waiting
        finally:
            self._waiting.remove(waiting)

    def _wake(self, users: Iterable[str], limits: Iterable[str] = (), *, but: _Waiting | None = None) -> None:
        """Wake, for each user whose turn it is and each limit that holds one call less, who waits longest."""
        turns, sets = set(users), set(limits)
        for waiting in self._waiting:
            if waiting is but:
                continue
            if waiting.limit is None:
                # What became free while it asked may be what it is then told to be without.
                waiting.woken.set()
            elif waiting.limit == "" and waiting.user in turns:
                turns.discard(waiting.user)
                waiting.woken.set()
            elif waiting.limit in sets:
                sets.discard(waiting.limit)
                waiting.woken.set()


def _freed(message: object) -> tuple[list[str], list[str]]:
    """Return the users whose turn it is, and the limits with one call less; empty if it is not a message.

    Shape: see `scripts/release.lua`.
    """
    try:
        users, limits = json.loads(message)  # type: ignore[arg-type]
        return [str(user) for user in users], [str(limit) for limit in limits]
    except (TypeError, ValueError):
        log.warning("free place message dropped", extra={"said": repr(message)[:200]})
        return [], []
