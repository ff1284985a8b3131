"""Events about files and lists, published by any host or worker node to the clients of every host.

They are sent over a Redis channel: subscribers receive them at once; without subscribers, an event is lost.
While Redis does not answer, events are queued, so some may arrive twice; a full queue drops the oldest.
Listeners are notified of every gap, whether a host lost its connection or a queue was full.

Source: requirement S0-68; Redis, "Pub/Sub".
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from runner.files.file_events import REMOVED, STORED
from runner.fleet.connection import REDIS_FAILURES, FleetConnection, leave_if_cancelled, redis_key, repeat
from runner.users.events import LIST_CHANGED, MISSED, UPDATED, Events

__all__ = ["SharedEvents"]

log = logging.getLogger(__name__)

_EVERYBODY = "events"
_MOST_WAITING = 1000
_MOST_AT_ONCE = 100
_LAST_S = 1.0
# Events of a call are not shared: its own host sends them.
_SHARED = frozenset({STORED, REMOVED, LIST_CHANGED, UPDATED, "files_update"})


class _News(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    source: str = Field(max_length=128)
    user: str = Field("", max_length=256)
    session: str | None = Field(None, max_length=256)
    event: dict[str, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class SharedEvents:
    """Events that one process of a fleet shares with the others.

    Attributes:
        connection: Connection to Redis.
        events: Events of this process.
        source: Name of this process in the fleet.
    """

    connection: FleetConnection
    events: Events
    source: str
    _waiting: deque[_News] = field(default_factory=deque)
    _has_gap: bool = False
    _was_subscribed: bool = False
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def shared(self, *, subscribe: bool) -> AsyncIterator[None]:
        """Publish events until the block ends.

        Args:
            subscribe: Whether to receive events too, for listeners of this process.
        """
        self.events.beyond = self._enqueue
        steps = (self._send, self._listen) if subscribe else (self._send,)
        work = [asyncio.create_task(repeat(step)) for step in steps]
        try:
            yield
        finally:
            self.events.beyond = None
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            with contextlib.suppress(*REDIS_FAILURES):
                async with asyncio.timeout(_LAST_S):
                    await self._publish()
            if self._waiting:
                log.warning("file events lost at shutdown", extra={"count": len(self._waiting)})

    def _enqueue(self, event: Mapping[str, Any], user: str, session: str | None) -> None:
        if event.get("type") not in _SHARED or "call" in event:
            return
        if len(self._waiting) >= _MOST_WAITING:
            if not self._has_gap:
                log.warning("file events lost")
            self._has_gap = True
            self.events.lost += 1
            self._waiting.popleft()
        self._waiting.append(_News(source=self.source, user=user, session=session, event=dict(event)))
        self._woken.set()

    async def _send(self) -> None:
        await self._woken.wait()
        await self._publish()
        self._woken.clear()

    async def _publish(self) -> None:
        """Publish the queued events; those that Redis does not accept stay queued.

        Raises:
            REDIS_FAILURES: Redis does not answer.
        """
        while self._waiting or self._has_gap:
            due = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_AT_ONCE))]
            gap = [_News(source=self.source, event={"type": MISSED})] if self._has_gap else []
            self._has_gap = False
            try:
                async with self.connection.redis.pipeline(transaction=False) as all_of_them:
                    for news in (*gap, *due):
                        sealed = await self.connection.sealed(news, to=_EVERYBODY)
                        all_of_them.publish(redis_key("events"), sealed)
                    await all_of_them.execute()
            except BaseException:
                self._waiting.extendleft(reversed(due))
                self._has_gap |= bool(gap)
                raise

    async def _listen(self) -> None:
        """Receive events until Redis fails."""
        async with self.connection.reading.pubsub() as channel:
            await channel.subscribe(redis_key("events"))
            if self._was_subscribed:
                self.events.note_missed()
            self._was_subscribed = True
            while True:
                leave_if_cancelled()
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=1.0)
                if message:
                    await self._receive(message["data"])

    async def _receive(self, sealed: bytes) -> None:
        news = await self.connection.opened(_News.model_validate, sealed, to=_EVERYBODY)
        if news is None or news.source == self.source:
            return
        if news.event.get("type") == MISSED:
            self.events.note_missed()
        else:
            self.events.deliver(news.event, user=news.user, session=news.session)
