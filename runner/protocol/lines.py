"""MCP messages as lines of JSON over two descriptors, read and written by the event loop itself.

These are the two streams that the SDK requires of a transport. Its own stdio streams pass each message
through threads, tasks and queues, which costs a short call more than everything else. The caller must make a
pipe or socket non-blocking. Each stream belongs to one loop; neither closes its descriptor.

The peer may send anything, as fast as the pipe accepts it. So a line is read only on demand, blank lines are
skipped, and the loop runs other tasks between two lines. The processing time of each connection is limited:
after a burst it pauses.

Source: MCP specification 2025-11-25 and 2026-07-28, "Transports, stdio".
"""

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp_types import JSONRPCError, JSONRPCResponse

from runner.protocol.internals.types import SessionMessage
from runner.protocol.messages import HEAD_BYTES, TAIL_BYTES, Unreadable, read_message, too_long
from runner.system.now_and_then import NowAndThen
from sandbox.loop_share import LoopShare
from sandbox.token_bucket import TokenBucket

__all__ = ["MOST_LINE_BYTES", "MOST_UNREADABLE", "IncomingLines", "OutgoingLines"]

log = logging.getLogger(__name__)

MOST_LINE_BYTES = 1 << 29
"""Longest line; a longer one ends the connection.

No accepted message is as long: the largest inline file (`base64_size_limit_mb`) has 400 MiB as base64.
"""

MOST_UNREADABLE = 10_000
"""Number of invalid lines in a row that ends the connection.

A server that logs to its standard output by mistake writes hundreds of them between messages. A program that
writes nothing else, such as a wrong command, will never answer. A few lines from an idle server are harmless,
so the quota refills with time.
"""
_UNREADABLE_PER_S = 10.0

_PIECE_BYTES = 1 << 18
_SHOWN_BYTES = 4096
_TURN_S = 0.01
_LAST_WORDS_S = 2.0
# Line ends, too: a blank line is ignored.
_BLANK = re.compile(rb"[ \t\r\n]*+")


class IncomingLines(ObjectReceiveStream[SessionMessage | Exception]):
    """Received messages; an invalid one is delivered as an exception with the reason.

    Args:
        descriptor: The descriptor to read from.
        refusals: Stream for the errors that answer unreadable requests; None to send none.
        most_bytes: Most bytes of a line; a longer one is not a message. `MOST_LINE_BYTES` at most.

    Attributes:
        problem: Reason why this side ended the connection; None if it did not.
        unreadable: Beginning of the first line that was not a message.
        sheds: Returns whether notifications are to be dropped now.
        shed: Called with the number of notifications that were dropped before parsing.
    """

    def __init__(
        self,
        descriptor: int,
        refusals: "OutgoingLines | None" = None,
        *,
        most_bytes: int | None = None,
    ) -> None:
        self.problem: str | None = None
        self.unreadable = b""
        self.sheds: Callable[[], bool] = lambda: False
        self.shed: Callable[[int], None] = lambda _count: None
        self._descriptor = descriptor
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._most_bytes = MOST_LINE_BYTES if most_bytes is None else most_bytes
        # Complete lines, and the offset of the next one.
        self._whole, self._at = b"", 0
        # The incomplete last line, and the number of bytes cut from its middle if it is too long.
        self._partial, self._left_out = bytearray(), 0
        self._came = asyncio.Event()
        self._watches = self._ended = False
        self._unreadable = TokenBucket(at_once=MOST_UNREADABLE - 1, per_s=_UNREADABLE_PER_S)
        self._noted = NowAndThen()
        self._share = LoopShare()
        self._turn_began = time.monotonic()

    async def receive(self) -> SessionMessage | Unreadable:
        """Return the next message.

        Raises:
            anyio.EndOfStream: There are no more.
        """
        while True:
            # Let other tasks run after a long turn, or once the time budget is spent.
            now = time.monotonic()
            rest_s = self._share.rest_s(now=now)
            if rest_s or now - self._turn_began > _TURN_S:
                await asyncio.sleep(rest_s)
                now = self._turn_began = time.monotonic()
            item, began = self._next(), now
            now = time.monotonic()
            self._share.spend(now - began, now=now)
            if isinstance(item, SessionMessage):
                self._unreadable.fill()
                return item
            if item is None:
                await self._more()
                continue
            self._note(item)
            if not item.is_request or item.id is None or self._refusals is None:
                return item
            refusal = JSONRPCError(jsonrpc="2.0", id=item.id, error=item.error)
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await self._refusals.send(SessionMessage(refusal))

    def _note(self, problem: Unreadable) -> None:
        """Log an invalid line, since nothing else may report it; end the connection after too many."""
        now = time.monotonic()
        lines = self._noted.due(now=now)
        if lines:
            log.info("invalid message line", extra={"problem": str(problem), "lines": lines})
        if not self._unreadable.takes(1, now=now):
            log.warning("connection closed: invalid lines", extra={"lines": MOST_UNREADABLE})
            self._whole, self._at = b"", 0
            self.give_up(f"it sent {MOST_UNREADABLE:,} lines that are not messages")

    def _next(self) -> SessionMessage | Unreadable | None:
        """Take the next line that is not blank; None if there is no complete one, or it is dropped."""
        left_out, self._left_out = self._left_out, 0
        blank = None if left_out else _BLANK.match(self._whole, self._at)
        at = self._at if blank is None else blank.end()
        if at == len(self._whole):
            self._whole, self._at, self._left_out = b"", 0, left_out
            return None
        end = self._whole.index(b"\n", at) + 1
        # Only this line is copied, not those behind it.
        line = self._whole[at:end]
        self._whole, self._at = (b"", 0) if end == len(self._whole) else (self._whole, end)
        # Requests and answers have an id. To parse notifications before they are dropped takes longer.
        if b'"id"' not in line and self.sheds():
            self.shed(1)
            return None
        if left_out or len(line) > self._most_bytes:
            return too_long(line[:HEAD_BYTES], line[-TAIL_BYTES:], self._most_bytes)
        try:
            return SessionMessage(read_message(line))
        except Unreadable as error:
            is_object = line.startswith(b"{") and line.rstrip().endswith(b"}")
            if error.id is None and not is_object:
                self.unreadable = self.unreadable or line[:_SHOWN_BYTES]
            return error

    async def _more(self) -> None:
        """Wait until there are complete lines.

        Raises:
            anyio.EndOfStream: The input has ended.
        """
        while not self._whole:
            if not self._ended:
                await self._readable()
            if self._ended:
                raise anyio.EndOfStream
            try:
                self._take(os.read(self._descriptor, _PIECE_BYTES))
            except BlockingIOError:
                continue
            except OSError:
                # A closed terminal fails like this; for a pipe, too, it is the end of input.
                self._take(b"")
            self._turn_began = time.monotonic()

    async def _readable(self) -> None:
        """Wait until there is something to read, or the stream is closed."""
        self._came.clear()
        if not self._watches:
            try:
                self._loop.add_reader(self._descriptor, self._notice)
            except PermissionError:
                # epoll refuses what is always ready, such as a regular file.
                await asyncio.sleep(0)
                return
            self._watches = True
        await self._came.wait()

    def _notice(self) -> None:
        """Wake the receiver; stop watching if none waits, or the loop would call this continuously."""
        if self._came.is_set():
            self._unwatch()
        self._came.set()

    def _unwatch(self) -> None:
        if self._watches:
            self._watches = False
            self._loop.remove_reader(self._descriptor)

    def _take(self, data: bytes) -> None:
        """Split what was read into complete lines and an incomplete one; no data is the end of input."""
        if not data:
            self._end()
        end = data.rfind(b"\n") + 1
        if end or not data:
            self._whole = b"".join((self._partial, data[:end] or b"\n"))
            self._partial = bytearray(data[end:])
            size = len(self._partial)
        else:
            self._partial += data
            size = len(self._partial) + self._left_out
            if len(self._partial) > self._most_bytes:
                # Beginning and end may hold the request id. That request fails; the connection stays open:
                # closing it would lose what a server holds in memory.
                self._partial[HEAD_BYTES:-TAIL_BYTES] = b""
                self._left_out = size - len(self._partial)
        if size > MOST_LINE_BYTES:
            log.warning("connection closed: line too long", extra={"bytes": size})
            self.give_up(f"it said a line of more than {MOST_LINE_BYTES:,} bytes")

    async def aclose(self) -> None:
        """Stop receiving, and end the iteration of waiting receivers."""
        self._whole, self._at = b"", 0
        self._end()

    def _end(self) -> None:
        self._unwatch()
        self._ended = True
        self._came.set()

    def give_up(self, problem: str) -> None:
        """End the connection after the complete lines that are not taken yet."""
        self.problem = problem
        self._partial.clear()
        self._end()


class OutgoingLines(ObjectSendStream[SessionMessage]):
    """Outgoing messages, each sent whole and in order, even if a sender is cancelled.

    Args:
        descriptor: The descriptor to write to.
        answered: Called with the id of each request whose answer was written, or will never be.
    """

    def __init__(self, descriptor: int, answered: Callable[[str | int], None] | None = None) -> None:
        self._descriptor = descriptor
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._left = bytearray()
        self._sent = asyncio.Event()
        self._problem: OSError | None = None
        self._closed = False
        self._listening = False

    async def send(self, item: SessionMessage) -> None:
        """Send a message as `send_line` does."""
        message = item.message
        answers = message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        await self.send_line(line, answers=answers)

    async def send_line(self, line: bytes, *, answers: str | int | None) -> None:
        """Send a message; return once the kernel has accepted all of it.

        Args:
            line: The message, without the line end.
            answers: Id of the request that it answers, if it answers one.

        Raises:
            anyio.ClosedResourceError: This side has closed the stream.
            anyio.BrokenResourceError: The other side has closed it.
        """
        was_closed = self._closed
        if not was_closed:
            self._left += line
            self._left += b"\n"
            if not self._listening:
                self._write()
            await self._taken()
        if answers is not None and self._answered is not None:
            self._answered(answers)
        if was_closed:
            raise anyio.ClosedResourceError
        if self._problem is not None:
            raise anyio.BrokenResourceError from self._problem

    async def _taken(self) -> None:
        while self._left and self._problem is None:
            self._sent.clear()
            await self._sent.wait()

    async def aclose(self) -> None:
        """Accept no further message, and wait up to two seconds until those accepted are written."""
        self._closed = True
        try:
            # A cancelled owner closes its streams too, and half a line is useless.
            with anyio.move_on_after(_LAST_WORDS_S, shield=True):
                await self._taken()
        finally:
            if self._left and self._problem is None:
                self._problem = TimeoutError("the other side took no more before the stream was closed")
            self._left.clear()
            self._silence()
            self._sent.set()

    def _silence(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_writer(self._descriptor)

    def _write(self) -> None:
        try:
            while self._left:
                del self._left[: os.write(self._descriptor, self._left)]
        except BlockingIOError:
            if not self._listening:
                self._listening = True
                self._loop.add_writer(self._descriptor, self._write)
            return
        except OSError as error:
            self._problem = error
        self._silence()
        self._sent.set()
