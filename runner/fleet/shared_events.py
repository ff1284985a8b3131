"""News of files and lists, from whichever host or worker node has them to the clients of every host.

They go over a channel of Redis: who listens hears them at once, and what is said while nobody listens is
lost. A host that was cut off says so to its listeners, as it does where they did not keep up. What a process
says while it is itself cut off is lost, and nobody is told.

Source: requirement S0-68; Redis, "Pub/Sub".
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.files.file_events import REMOVED, STORED
from runner.fleet.connection import Connection, Unreachable, leave_if_cancelled
from runner.fleet.seal import Forged
from runner.users.events import LIST_CHANGED, UPDATED, Events

__all__ = ["SharedEvents"]

log = logging.getLogger(__name__)

_EVERYBODY = "events"
_MOST_WAITING = 1000
_MOST_AT_ONCE = 100
_AGAIN_S = 0.3
# What belongs to one call its own host tells.
_SHARED = frozenset({STORED, REMOVED, LIST_CHANGED, UPDATED, "files_update"})


class _News(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

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

    connection: Connection
    events: Events
    source: str
    _waiting: "asyncio.Queue[str]" = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))

    @asynccontextmanager
    async def shared(self, *, hears: bool) -> AsyncIterator[None]:
        """Tell others until the block ends.

        Args:
            hears: Whether somebody may listen here, too.
        """
        self.events.beyond = self._tell
        work = [asyncio.create_task(self._send())]
        if hears:
            work.append(asyncio.create_task(self._listen()))
        try:
            yield
        finally:
            self.events.beyond = None
            for task in work:
                task.cancel()
            await asyncio.wait(work)

    def _tell(self, event: Mapping[str, Any], user: str, session: str | None) -> None:
        if event.get("type") not in _SHARED or "call" in event:
            return
        news = _News(source=self.source, user=user, session=session, event=dict(event))
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(self.connection.key.seal(news.model_dump(), to=_EVERYBODY))

    async def _send(self) -> None:
        channel = self.connection.keys.events
        while True:
            leave_if_cancelled()
            texts = [await self._waiting.get()]
            while not self._waiting.empty() and len(texts) < _MOST_AT_ONCE:
                texts.append(self._waiting.get_nowait())
            try:
                async with self.connection.redis.pipeline(transaction=False) as all_of_them:
                    for text in texts:
                        all_of_them.publish(channel, text)
                    await all_of_them.execute()
            except Unreachable as error:
                # They are lost. Hosts that are cut off, too, say so to their listeners; others do not know.
                log.warning("news of files were not told", extra={"fault": str(error)})
                await asyncio.sleep(_AGAIN_S)

    async def _listen(self) -> None:
        was_cut_off = False
        while True:
            leave_if_cancelled()
            with contextlib.suppress(*Unreachable):
                async with self.connection.reading.pubsub() as channel:
                    await channel.subscribe(self.connection.keys.events)
                    if was_cut_off:
                        self.events.note_missed()
                    while True:
                        leave_if_cancelled()
                        heard = await channel.get_message(ignore_subscribe_messages=True, timeout=1.0)
                        if heard:
                            self._heard(heard.get("data"))
            was_cut_off = True
            await asyncio.sleep(_AGAIN_S)

    def _heard(self, text: Any) -> None:
        try:
            news = _News.model_validate(self.connection.key.opened(text, to=_EVERYBODY))
        except (Forged, ValidationError) as error:
            log.warning("a message was dropped", extra={"reason": str(error)})
            return
        if news.source != self.source:
            self.events.deliver(news.event, user=news.user, session=news.session)
