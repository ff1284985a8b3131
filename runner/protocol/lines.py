"""MCP messages as lines of JSON over two descriptors, read and written by the event loop itself.

These are the two streams that the SDK requires of a transport. Its own for stdio pass each message through
threads, tasks and queues, which costs a short call more than all else. The owner of a pipe or socket makes it
non-blocking. Each stream belongs to one loop; neither closes its descriptor.

The peer may send anything, as fast as the pipe accepts it. So a line is read only on demand, blank lines are
skipped, the loop runs other tasks between two lines, and the processing time of each connection is counted:
after a burst it pauses.

Source: MCP specification 2025-11-25 and 2026-07-28, "Transports, stdio".
"""

import asyncio
import contextlib
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Self

import anyio
from mcp_types import JSONRPCError, JSONRPCResponse

from runner.protocol.internals.types import SessionMessage
from runner.protocol.messages import HEAD_BYTES, TAIL_BYTES, Unreadable, read_message, too_long
from runner.system.now_and_then import NowAndThen
from sandbox.host.loop_share import LoopShare
from sandbox.token_bucket import TokenBucket

__all__ = ["MOST_LINE_BYTES", "MOST_UNREADABLE", "IncomingLines", "OutgoingLines", "ReceivedMessages"]

log = logging.getLogger(__name__)

MOST_LINE_BYTES = 1 << 29
"""More than any message that is accepted has; a line that is longer ends the connection.

The largest file that is handed on inline (`base64_size_limit_mb`) has 400 MiB as base64.
"""

MOST_UNREADABLE = 10_000
"""Number of lines without a message between them that ends the connection.

A server that prints what it does to its standard output by mistake says hundreds of them, and goes on with
messages; what says no more than lines, such as a wrong command, will answer nobody. One that says a few now
and then, while nobody asks it anything, harms nobody.
"""
_UNREADABLE_PER_S = 10.0

_PIECE_BYTES = 1 << 18
_SHOWN_BYTES = 4096
_TURN_S = 0.01
_LAST_WORDS_S = 2.0
# Line ends, too: a blank line is ignored.
_BLANK = re.compile(rb"[ \t\r\n]*+")


class _Stream(ABC):
    """Base of all streams: entered as a context, closed on exit."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()


class ReceivedMessages(_Stream):
    """Base of streams of received messages, as the SDK reads them."""

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> SessionMessage | Exception: ...

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message.

        Raises:
            anyio.EndOfStream: There are no more.
        """
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None


class IncomingLines(ReceivedMessages):
    """Received messages; an invalid one is delivered as an exception with the reason.

    Args:
        descriptor: Where they come in.
        refusals: Where to answer requests that cannot be read; None where nobody answers them.
        most_bytes: The most bytes of a line; a longer one is not a message. `MOST_LINE_BYTES` at most.

    Attributes:
        problem: Why the connection was ended from here, if it was.
        unreadable: Beginning of the first line that was not a message.
        sheds: Says whether notifications would be dropped now.
        shed: Hears how many were, before they were read.
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
        # Whole lines, and where the next of them begins; then the beginning of one.
        self._whole, self._at = b"", 0
        self._partial = bytearray()
        self._most_bytes = MOST_LINE_BYTES if most_bytes is None else most_bytes
        # How long the line is that is left out, if one is; and then the error of it.
        self._left_out = 0
        self._too_long: Unreadable | None = None
        self._came = asyncio.Event()
        self._ended = False
        self._listening = False
        self._always_ready = False
        self._unreadable = TokenBucket(at_once=MOST_UNREADABLE - 1, per_s=_UNREADABLE_PER_S)
        self._noted = NowAndThen()
        self._share = LoopShare()
        self._turn_began = time.monotonic()

    async def __anext__(self) -> SessionMessage | Unreadable:
        while True:
            # Others have the loop, if it is their turn.
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
                if not self._whole:
                    await self._more()
                continue
            self._note(item)
            if not item.is_request or item.id is None or self._refusals is None:
                return item
            refusal = JSONRPCError(jsonrpc="2.0", id=item.id, error=item.error)
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await self._refusals.send(SessionMessage(refusal))

    def _note(self, problem: Unreadable) -> None:
        """Log a line that is not a message; it may have no other recipient."""
        now = time.monotonic()
        lines = self._noted.due(now=now)
        if lines:
            log.info("invalid message line", extra={"problem": str(problem), "lines": lines})
        if not self._unreadable.takes(1, now=now):
            log.warning("connection closed: invalid lines", extra={"lines": MOST_UNREADABLE})
            self._whole, self._at = b"", 0
            self.give_up(f"it sent {MOST_UNREADABLE:,} lines that are not messages")

    def _next(self) -> SessionMessage | Unreadable | None:
        """Take the next line that is not blank; None if no whole one is there, or it is dropped."""
        if self._too_long is not None:
            item, self._too_long = self._too_long, None
            return item
        blank = _BLANK.match(self._whole, self._at)
        at = self._at if blank is None else blank.end()
        if at == len(self._whole):
            self._whole, self._at = b"", 0
            return None
        end = self._whole.index(b"\n", at) + 1
        # The whole is not copied.
        line = self._whole[at:end]
        self._whole, self._at = (b"", 0) if end == len(self._whole) else (self._whole, end)
        # A request or an answer has an id, however it is written; to read all the others takes longer.
        if b'"id"' not in line and self.sheds():
            self.shed(1)
            return None
        if len(line) > self._most_bytes:
            return too_long(line[:HEAD_BYTES], line[-TAIL_BYTES:], self._most_bytes)
        try:
            return SessionMessage(read_message(line))
        except Unreadable as error:
            is_object = line.startswith(b"{") and line.rstrip().endswith(b"}")
            if error.id is None and not is_object:
                self.unreadable = self.unreadable or line[:_SHOWN_BYTES]
            return error

    async def _more(self) -> None:
        """Wait for further lines.

        Raises:
            StopAsyncIteration: There are none.
        """
        if self._ended:
            raise StopAsyncIteration
        self._came.clear()
        if not self._listening and not self._always_ready:
            try:
                self._loop.add_reader(self._descriptor, self._readable)
                self._listening = True
            except PermissionError:
                # What is always ready, such as a file, the kernel does not watch.
                self._always_ready = True
        if self._always_ready:
            self._loop.call_soon(self._readable)
        await self._came.wait()
        self._turn_began = time.monotonic()

    async def aclose(self) -> None:
        """Receive no more, and end the iteration of waiting receivers."""
        self._whole, self._at = b"", 0
        self._end()

    def _silence(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._descriptor)

    def _end(self) -> None:
        self._silence()
        self._ended = True
        self._came.set()

    def give_up(self, problem: str) -> None:
        """End the connection after the lines that are still to be taken."""
        self.problem = problem
        self._partial.clear()
        self._end()

    def _readable(self) -> None:
        if self._ended:
            return
        if self._whole or self._too_long is not None:
            # Who has said so much can wait until it has been read.
            self._silence()
            return
        data: bytes | None
        try:
            data = os.read(self._descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # A terminal that is gone says so in this way; of a pipe it is the end too.
            data = b""
        if data and self._left_out:
            data = self._without_long_line(data)
        if data is None:
            return
        end = data.rfind(b"\n") + 1
        if end:
            self._whole = b"".join((self._partial, data[:end]))
            self._partial = bytearray(data[end:])
        elif data:
            self._partial += data
        else:
            # Half of a line that was left out might be read as another one.
            self._whole = b"\n" if self._left_out else bytes(self._partial + b"\n")
            self._partial.clear()
            self._end()
        if len(self._partial) > self._most_bytes:
            self._leave_out(len(self._partial))
        if self._whole or self._always_ready:
            self._came.set()

    def _leave_out(self, size: int) -> None:
        """Leave out a line that is longer than any that is read, or end the connection for it.

        Its beginning and end are kept for the request id. Its client receives an error by that id and the
        connection goes on: to end it would end what a server holds in memory.
        """
        self._left_out += size
        self._partial[HEAD_BYTES:-TAIL_BYTES] = b""
        if self._left_out > MOST_LINE_BYTES:
            log.warning("connection closed: line too long", extra={"bytes": self._left_out})
            self._left_out = 0
            self.give_up(f"it said a line of more than {MOST_LINE_BYTES:,} bytes")

    def _without_long_line(self, data: bytes) -> bytes | None:
        """Return the bytes after a skipped line; None if there are none yet."""
        rest, newline, after = data.partition(b"\n")
        self._partial += rest
        if not newline:
            self._leave_out(len(rest))
            return None
        line, self._left_out = bytes(self._partial), 0
        self._too_long = too_long(line[:HEAD_BYTES], line[HEAD_BYTES:][-TAIL_BYTES:], self._most_bytes)
        self._partial.clear()
        self._came.set()
        return after or None


class OutgoingLines(_Stream):
    """Outgoing messages, each whole and in order, even if a sender is cancelled.

    Args:
        descriptor: Where they go.
        answered: Is called with the id of each request whose answer was taken, or will never be.
    """

    def __init__(self, descriptor: int, answered: Callable[[str | int], None] | None = None) -> None:
        self._descriptor = descriptor
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._left: deque[memoryview] = deque()
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
        """Send a message; return once the other side has taken it, or the kernel for it.

        Args:
            line: The message, without the line end.
            answers: Id of the request that it answers, if it answers one.

        Raises:
            anyio.ClosedResourceError: This side has closed the stream.
            anyio.BrokenResourceError: The other side has.
        """
        was_closed = self._closed
        if not was_closed:
            self._left.append(memoryview(line + b"\n"))
            if not self._listening:
                self._write()
            while self._left and self._problem is None:
                self._sent.clear()
                await self._sent.wait()
        if answers is not None and self._answered is not None:
            self._answered(answers)
        if was_closed:
            raise anyio.ClosedResourceError
        if self._problem is not None:
            raise anyio.BrokenResourceError from self._problem

    async def aclose(self) -> None:
        """Send no more, after what has begun to be sent."""
        self._closed = True
        try:
            # Who is cancelled closes its streams too, and half a line is worth nothing.
            with anyio.move_on_after(_LAST_WORDS_S, shield=True):
                while self._left and self._problem is None:
                    self._sent.clear()
                    await self._sent.wait()
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
                first = self._left[0]
                written = os.write(self._descriptor, first)
                if written < len(first):
                    self._left[0] = first[written:]
                else:
                    self._left.popleft()
        except BlockingIOError:
            if not self._listening:
                self._listening = True
                self._loop.add_writer(self._descriptor, self._write)
            return
        except OSError as error:
            self._problem = error
        self._silence()
        self._sent.set()
