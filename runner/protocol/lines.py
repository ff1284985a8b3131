"""MCP messages as lines of JSON over two descriptors, read and written by the event loop itself.

These are the two streams that the SDK wants of a transport. Its own for stdio pass each message through
threads, tasks and queues, which costs a short call more than all else. A pipe or socket has to be set not to
block by whoever owns it. Each stream belongs to one loop; neither
closes its descriptor.

Source: MCP specification 2025-11-25 and 2026-07-28, "Transports, stdio".
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
from mcp_types import JSONRPCError

from runner.protocol.internals.types import SessionMessage
from runner.protocol.messages import Unreadable, read_message
from runner.system.now_and_then import NowAndThen

__all__ = ["MOST_LINE_BYTES", "IncomingLines", "OutgoingLines"]

log = logging.getLogger(__name__)

MOST_LINE_BYTES = 1 << 29
"""More than any message that is accepted has; a line that is longer ends the connection."""

_PIECE_BYTES = 1 << 18
_MOST_WAITING = 64
_LAST_WORDS_S = 2.0


class _Stream:
    """What both streams have in common: they are entered, and closed when they are left."""

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class IncomingLines(_Stream):
    """Messages that come in; what is no message comes as the exception that says why.

    Args:
        descriptor: Where they come in.
        refusals: Where to answer requests that cannot be read; None where nobody answers them.
    """

    def __init__(self, descriptor: int, refusals: "OutgoingLines | None" = None) -> None:
        self._descriptor = descriptor
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[SessionMessage | Unreadable] = deque()
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._came = asyncio.Event()
        self._ended = False
        self._listening = False
        self._always_ready = False
        self._unreadable = NowAndThen()
        # Says whether notifications would be dropped now, and hears how many were before they were read.
        self.sheds: Callable[[], bool] = lambda: False
        self.shed: Callable[[int], None] = lambda _count: None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Unreadable:
        while True:
            item = await self._next()
            if isinstance(item, SessionMessage):
                return item
            self._note(item)
            if not item.is_request or self._refusals is None:
                return item
            if item.id is None:
                return item
            refusal = JSONRPCError(jsonrpc="2.0", id=item.id, error=item.error)
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await self._refusals.send(SessionMessage(refusal))

    def _note(self, problem: Unreadable) -> None:
        """Tell the log of a line that is no message: nobody else may hear of it."""
        lines = self._unreadable.due(now=time.monotonic())
        if lines:
            log.info("a line is no message", extra={"problem": str(problem), "lines": lines})

    async def _next(self) -> SessionMessage | Unreadable:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._came.clear()
            self._listen()
            await self._came.wait()
        return self._waiting.popleft()

    async def receive(self) -> SessionMessage | Unreadable:
        """Return the next message.

        Raises:
            anyio.EndOfStream: There are no more.
        """
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        """Take no more; who waits for a message hears that there is none."""
        self._end()

    def _listen(self) -> None:
        if not self._listening and not self._always_ready:
            try:
                self._loop.add_reader(self._descriptor, self._readable)
                self._listening = True
            except PermissionError:
                # What is always ready, such as a file, the kernel does not watch.
                self._always_ready = True
        if self._always_ready:
            self._loop.call_soon(self._readable)

    def _wanted(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines that somebody waits for, where all else would be dropped once it was read."""
        if not self.sheds():
            return lines
        # A request or an answer has an id, however it is written; to read all the others takes far longer.
        wanted = [line for line in lines if b'"id"' in line]
        if len(wanted) < len(lines):
            self.shed(len(lines) - len(wanted))
        return wanted

    def _silence(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._descriptor)

    def _end(self) -> None:
        self._silence()
        self._ended = True
        self._came.set()

    def _readable(self) -> None:
        if self._ended:
            return
        try:
            data = os.read(self._descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # A terminal that is gone says so in this way; of a pipe it is the end too.
            data = b""
        if b"\n" in data:
            *whole, rest = (b"".join(self._begun) + data).split(b"\n")
            self._begun, self._begun_bytes = [rest], len(rest)
            self._waiting.extend(map(_message, self._wanted(whole)))
        elif data:
            self._begun.append(data)
            self._begun_bytes += len(data)
        else:
            self._waiting.extend(_message(line) for line in [b"".join(self._begun)] if line)
            self._end()
        self._end_if_too_long()
        if len(self._waiting) >= _MOST_WAITING:
            self._silence()
        if self._waiting or self._always_ready:
            self._came.set()

    def _end_if_too_long(self) -> None:
        if self._begun_bytes > MOST_LINE_BYTES:
            log.warning("connection ended: a line is too long", extra={"bytes": self._begun_bytes})
            self._begun, self._begun_bytes = [], 0
            self._end()


class OutgoingLines(_Stream):
    """Messages that go out, each whole and in its turn, whoever is cancelled meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._left: deque[memoryview] = deque()
        self._sent = asyncio.Event()
        self._problem: OSError | None = None
        self._closed = False
        self._listening = False

    async def send(self, item: SessionMessage) -> None:
        """Send a message; return once the other side has taken it, or the kernel for it.

        Raises:
            anyio.ClosedResourceError: This side has closed the stream.
            anyio.BrokenResourceError: The other side has.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
        self._left.append(memoryview(line.encode()))
        if not self._listening:
            self._write()
        while self._left and self._problem is None:
            self._sent.clear()
            await self._sent.wait()
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


def _message(line: bytes) -> SessionMessage | Unreadable:
    # As text, so that bytes that are no UTF-8 spoil a string and not the message.
    try:
        return SessionMessage(read_message(line.decode("utf-8", "replace")))
    except Unreadable as error:
        return error
