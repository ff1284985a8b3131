"""Events about files and lists, published by any host or worker node to the clients of every host.

They go over a Redis channel: subscribers receive them at once, and an event without subscribers is lost. A
host that lost its connection reports a gap to its listeners, as it does to those that did not keep up.

While Redis does not answer, events are queued, so some may arrive twice. Repeated changes of one list or
resource are queued once. When the queue is full, the oldest events are dropped and counted, and the
listeners of their user receive the number.

Source: requirement S0-68; Redis, "Pub/Sub".
"""

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from runner.files.file_events import REMOVED, STORED
from runner.fleet.connection import (
    REDIS_FAILURES,
    FleetConnection,
    leave_if_cancelled,
    problem_of,
    redis_key,
)
from runner.users.events import LIST_CHANGED, MISSED, UPDATED, Events

__all__ = ["SharedEvents"]

log = logging.getLogger(__name__)

_EVERYBODY = "events"
_MOST_WAITING = 1000
_MOST_AT_ONCE = 100
_AGAIN_S = 0.3
_LAST_S = 1.0
# Events of one call are sent by its own host.
_SHARED = frozenset({STORED, REMOVED, LIST_CHANGED, UPDATED, "files_update"})


class _News(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    source: str = Field(max_length=128)
    user: str = Field(max_length=256)
    session: str | None = Field(max_length=256)
    event: dict[str, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class SharedEvents:
    """The events of one process of a fleet that concern others.

    Attributes:
        connection: The way to Redis.
        events: Those of this process.
        source: What it is called in the fleet.
    """

    connection: FleetConnection
    events: Events
    source: str
    # In the order in which they came.
    _waiting: dict[Hashable, _News] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def shared(self, *, subscribe: bool) -> AsyncIterator[None]:
        """Publish events until the block ends.

        Args:
            subscribe: Whether this process has listeners too.
        """
        self.events.beyond = self._enqueue
        work = [asyncio.create_task(self._send())]
        if subscribe:
            work.append(asyncio.create_task(self._listen()))
        try:
            yield
        finally:
            self.events.beyond = None
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            with contextlib.suppress(*REDIS_FAILURES):
                async with asyncio.timeout(_LAST_S):
                    while self._waiting or self._lost:
                        await self._publish()
            if self._waiting or self._lost:
                count = len(self._waiting) + self._lost.total()
                log.warning("file events lost at shutdown", extra={"count": count})

    def _enqueue(self, event: Mapping[str, Any], user: str, session: str | None) -> None:
        if event.get("type") not in _SHARED or "call" in event:
            return
        news = _News(source=self.source, user=user, session=session, event=dict(event))
        key = _merged_by(news)
        # What replaces another one is as new as the last.
        self._waiting.pop(key, None)
        self._waiting[key] = news
        if len(self._waiting) > _MOST_WAITING:
            if not self._lost:
                log.warning("file events lost")
            self.events.lost += 1
            self._lost[self._waiting.pop(next(iter(self._waiting))).user] += 1
        self._woken.set()

    async def _send(self) -> None:
        is_behind = False
        while True:
            leave_if_cancelled()
            await self._woken.wait()
            self._woken.clear()
            try:
                while self._waiting or self._lost:
                    await self._publish()
            except REDIS_FAILURES as error:
                if not is_behind:
                    facts = {"fault": problem_of(error), "count": len(self._waiting)}
                    log.warning("file events wait for redis", extra=facts)
                is_behind = True
                await asyncio.sleep(_AGAIN_S)
                self._woken.set()
            else:
                is_behind = False

    async def _publish(self) -> None:
        """Publish some of the queue, with the number of lost events; keep it on failure.

        Raises:
            REDIS_FAILURES: Redis does not answer.
        """
        due, lost = dict(itertools.islice(self._waiting.items(), _MOST_AT_ONCE)), dict(self._lost)
        missed = [
            _News(source=self.source, user=user, session=None, event={"type": MISSED, "count": count})
            for user, count in lost.items()
        ]
        async with self.connection.redis.pipeline(transaction=False) as all_of_them:
            for news in (*missed, *due.values()):
                sealed = await self.connection.sealed(news, to=_EVERYBODY)
                all_of_them.publish(redis_key("events"), sealed)
            await all_of_them.execute()
        for key, news in due.items():
            if self._waiting.get(key) is news:
                del self._waiting[key]
        # Without users whose count is zero.
        self._lost -= Counter(lost)

    async def _listen(self) -> None:
        was_cut_off = False
        while True:
            leave_if_cancelled()
            with contextlib.suppress(*REDIS_FAILURES):
                async with self.connection.reading.pubsub() as channel:
                    await channel.subscribe(redis_key("events"))
                    if was_cut_off:
                        self.events.note_missed()
                    while True:
                        leave_if_cancelled()
                        message = await channel.get_message(ignore_subscribe_messages=True, timeout=1.0)
                        if message:
                            await self._receive(message["data"])
            was_cut_off = True
            await asyncio.sleep(_AGAIN_S)

    async def _receive(self, sealed: bytes) -> None:
        news = await self.connection.opened(_News.model_validate, sealed, to=_EVERYBODY)
        if news is not None and news.source != self.source:
            self.events.deliver(news.event, user=news.user, session=news.session)


def _merged_by(news: _News) -> Hashable:
    """Return a key that is equal for events of which the last one is enough."""
    kind = news.event.get("type")
    what = news.event.get({LIST_CHANGED: "list", UPDATED: "uri"}.get(str(kind), ""))
    return object() if what is None else (kind, news.user, news.session, str(what))
