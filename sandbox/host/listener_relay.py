"""Relay of a worker's notifications and requests to the owner of its call, and of the answers.

Notifications and rungs of the ladder reach the listener in order, one at a time; if it is too slow, they are
dropped and counted. Requests are answered one after the other, unless they wait for a person. Both are
limited: a worker that sends more breaks the protocol.

Most calls send none of this, so it is created with the first message.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sandbox.deadlines import Ladder, Rung
from sandbox.errors import FrameError
from sandbox.frames import FrameKind, encode
from sandbox.host.connection import Connection
from sandbox.loop_share import LoopShare

__all__ = ["Listener", "ListenerRelay"]

log = logging.getLogger(__name__)

_BACKLOG = 1024
_BACKLOG_BYTES = 16 * 1024 * 1024
# After the answer: the longest time without a delivery, and the longest time for all deliveries.
_DRAIN_S = 1.0
_LONGEST_DRAIN_S = 10.0
# JSON-RPC error code.
_INTERNAL_ERROR = -32603


class Listener(Protocol):
    """Receiver of a call's notifications and requests."""

    async def notify(self, value: Mapping[str, object]) -> None:
        """Receive a notification of the program."""
        ...

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a request of the program."""
        ...

    def waits_for_client(self, value: Mapping[str, object]) -> bool:
        """Return whether a request waits for a person or client, so that silence does not count."""
        ...

    async def rung(self, rung: Rung) -> None:
        """Receive a rung of the ladder that does not end the call."""
        ...


@dataclass(slots=True)
class _Backlog:
    """Bounds of a queue, in number and bytes."""

    count: int = 0
    size: int = 0
    refused: int = 0

    def take(self, size: int) -> bool:
        """Add one message; return False if that is too much."""
        if self.count >= _BACKLOG or self.size + size > _BACKLOG_BYTES:
            self.refused += 1
            return False
        self.count += 1
        self.size += size
        return True

    def drop(self, size: int) -> None:
        """Remove one message."""
        self.count -= 1
        self.size -= size


@dataclass(slots=True, kw_only=True, eq=False)
class ListenerRelay:
    """Relay in both directions between one call and its listener.

    Attributes:
        listener: The receiver.
        connection: The connection to the worker.
        share: Event loop time used by the user's workers.
        ladder: The ladder of the call, which pauses while a person is waited for.
        resumed: Called when the ladder resumes.
    """

    listener: Listener
    connection: Connection
    share: LoopShare
    ladder: Ladder
    resumed: Callable[[], None]
    _untold: _Backlog = field(init=False, default_factory=_Backlog)
    _unanswered: _Backlog = field(init=False, default_factory=_Backlog)
    _notices: "asyncio.Queue[tuple[Mapping[str, object] | Rung, int]]" = field(
        init=False, default_factory=asyncio.Queue
    )
    _teller: "asyncio.Task[None] | None" = field(init=False, default=None)
    _replies: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _serving: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _replying: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    @property
    def untold(self) -> int:
        """The number of undelivered notices."""
        return self._untold.refused + self._untold.count

    @property
    def is_answering(self) -> bool:
        """True if a request of the worker has no answer yet."""
        return bool(self._replies)

    def offer(self, notice: Mapping[str, object] | Rung, size: int = 0) -> None:
        """Queue a notice of `size` bytes; drop it if the listener does not keep up."""
        if self._untold.take(size):
            if self._teller is None:
                self._teller = asyncio.create_task(self._tell())
            self._notices.put_nowait((notice, size))

    def ask(self, value: Mapping[str, object], size: int) -> None:
        """Answer a request of `size` bytes.

        Raises:
            FrameError: The worker has too many requests pending.
        """
        if not self._unanswered.take(size):
            raise FrameError("more requests than a worker may have open at once")
        reply = asyncio.create_task(self._reply(value))
        self._replies.add(reply)
        reply.add_done_callback(self._replies.discard)
        reply.add_done_callback(lambda _done: self._unanswered.drop(size))

    async def drain(self) -> None:
        """Deliver notifications that precede the answer, within a time limit."""
        # A notice whose delivery is in progress is not in the queue any more.
        if self._teller is None or self._teller.done():
            return
        drained = asyncio.create_task(self._notices.join())
        ends_at = time.monotonic() + _LONGEST_DRAIN_S
        try:
            while time.monotonic() < ends_at:
                left = self._untold.count
                done, _ = await asyncio.wait(
                    {drained, self._teller}, timeout=_DRAIN_S, return_when=asyncio.FIRST_COMPLETED
                )
                if done or self._untold.count == left:
                    break
        finally:
            drained.cancel()

    def tell_no_more(self) -> bool:
        """Drop undelivered notices; return whether a delivery is in progress, for `end` to wait for."""
        return self._teller is not None and self._teller.cancel()

    def answer_no_more(self) -> None:
        """Cancel pending answers. A thread that copies a large file for one continues."""
        for reply in self._replies:
            reply.cancel()

    async def end(self) -> None:
        """Wait until no notice is being delivered. Pending answers are not waited for."""
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.gather(self._teller, return_exceptions=True)
            # A cancelled task keeps its traceback, which refers to this: a cycle for the garbage collector.
            self._teller = None

    async def _tell(self) -> None:
        while True:
            notice, size = await self._notices.get()
            if isinstance(notice, Rung):
                await self.listener.rung(notice)
            else:
                await self.share.measured(self.listener.notify, notice)
            self._untold.drop(size)
            self._notices.task_done()
            await self.share.rest()

    async def _reply(self, value: Mapping[str, object]) -> None:
        waits = self.listener.waits_for_client(value)
        frame = await (self._ask_client(value) if waits else self._served(value))
        try:
            # One send at a time: the bytes of overlapping sends would mix.
            async with self._replying:
                await self.connection.send_all(frame)
        except OSError as error:
            log.debug("worker exited before reply", extra={"fault": str(error)})

    async def _served(self, value: Mapping[str, object]) -> bytes:
        # Requests are answered one at a time, within their share of the event loop.
        async with self._serving:
            await self.share.rest()
            return await self.share.measured(_reply_to, value, self.listener)

    async def _ask_client(self, value: Mapping[str, object]) -> bytes:
        """Send a request to a person or client; meanwhile answer others, and do not count silence."""
        self.ladder.pause(time.monotonic())
        try:
            async with self._serving:
                await self.share.rest()
            return await self.share.measured(_reply_to, value, self.listener)
        finally:
            self.ladder.resume(time.monotonic())
            # Silence counts again, so the next rung is due earlier than its timer.
            self.resumed()


async def _reply_to(value: Mapping[str, object], listener: Listener) -> bytes:
    """Return the frame that answers a request of a worker."""
    question_id = value.get("id")
    number = question_id if isinstance(question_id, int | str) else None
    answer = await listener.request(value)
    try:
        return encode(FrameKind.REPLY, {"id": number, **answer})
    except (TypeError, ValueError, RecursionError) as error:
        # A client's answer may not be valid JSON, or be nested too deeply to encode in a frame.
        problem = {"code": _INTERNAL_ERROR, "message": f"the answer cannot be sent: {error}"}
        return encode(FrameKind.REPLY, {"id": number, "error": problem})
