"""A process of ours that speaks MCP over its standard streams: started, and ended with all that it started.

One that does not read the answers to its requests is disconnected.

Source: MCP specification 2025-11-25, "Lifecycle, Shutdown, stdio".
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

import anyio
from mcp_types import JSONRPCError, JSONRPCResponse

from runner.protocol.internals.proxy import mark_sent
from runner.protocol.internals.types import SessionMessage
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.proxy.stderr import plain_line

__all__ = ["TOO_MANY_REQUESTS", "AnswerLines", "ServerLines", "spoken_with"]

TOO_MANY_REQUESTS = "it had too many requests of its own open"
"""Reason to disconnect a server that sends requests without end."""

# Answers that the server does not read.
_MOST_ANSWERS = 256
_SHOWN_CHARS = 100
_PATIENCE_S = 2.0
_PIECE_BYTES = 1 << 16


class ServerLines(IncomingLines):
    """Messages of a server over lines; an unreadable answer becomes an error with the reason."""

    def misframed(self, masked: Callable[[str], str]) -> str | None:
        """Return a sentence about the first line that was not JSON; None if there was none.

        Args:
            masked: Returns a text without the secrets of the server.
        """
        if not self.unreadable:
            return None
        line = plain_line(masked(self.unreadable.decode("utf-8", "replace").strip()))[:_SHOWN_CHARS]
        return (
            f"it wrote '{line}' to its standard output, which is for messages only: MCP requires each to be "
            "JSON on one line, without a header such as Content-Length"
        )

    async def __anext__(self) -> SessionMessage:
        while True:
            item = await super().__anext__()
            if isinstance(item, SessionMessage):
                mark_sent(item.message)
                return item
            if item.id is not None and not item.is_request:
                return SessionMessage(JSONRPCError(jsonrpc="2.0", id=item.id, error=item.error))


class AnswerLines(OutgoingLines):
    """Messages to a server over lines, which is disconnected if too many answers wait.

    Args:
        descriptor: Where they go.

    Attributes:
        incoming: The messages of the server, once they are read.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.incoming: IncomingLines | None = None
        self._waiting = 0

    async def send(self, item: SessionMessage) -> None:
        """Send a message.

        Raises:
            anyio.ClosedResourceError: This side has closed the stream.
            anyio.BrokenResourceError: The other side has.
        """
        is_answer = isinstance(item.message, JSONRPCResponse | JSONRPCError)
        self._waiting += is_answer
        if self._waiting > _MOST_ANSWERS and self.incoming is not None:
            self.incoming.give_up(TOO_MANY_REQUESTS)
        try:
            await super().send(item)
        finally:
            self._waiting -= is_answer


@asynccontextmanager
async def spoken_with(
    command: Sequence[str], *, environment: Mapping[str, str], errors: TextIO, most_bytes: int
) -> AsyncIterator[tuple[ServerLines, AnswerLines, Callable[[], bool]]]:
    """Start a command, and yield its output, its input, and whether some of its input is unread.

    When the block ends, so does the command.

    Args:
        command: The program, absolute, and its arguments.
        environment: All variables that it sees.
        errors: Its standard error.
        most_bytes: How long a message of it may be.

    Raises:
        OSError: It cannot be started.
    """
    its_input, to_it = os.pipe()
    from_it, its_output = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=its_input,
            stdout=its_output,
            stderr=errors,
            env=dict(environment),
            # Signals for us are not for it, and those for it reach all that it started.
            start_new_session=True,
        )
    except BaseException:
        os.close(to_it)
        os.close(from_it)
        raise
    finally:
        os.close(its_input)
        os.close(its_output)
    for descriptor in (to_it, from_it):
        os.set_blocking(descriptor, False)
    try:
        outgoing = AnswerLines(to_it)
        outgoing.incoming = incoming = ServerLines(from_it, refusals=outgoing, most_bytes=most_bytes)
        yield incoming, outgoing, lambda: _has_unread(to_it)
    finally:
        # Who is cancelled meanwhile leaves a task behind, and no process.
        ending = asyncio.ensure_future(_end(process, to_it, from_it))
        with anyio.CancelScope(shield=True):
            await asyncio.shield(ending)


def _has_unread(pipe: int) -> bool:
    """Return whether a pipe holds bytes, also once its reader has ended."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return bool(count)


async def _end(process: Process, to_it: int, from_it: int) -> None:
    """Let a process end by itself, else end it; close our ends of its pipes."""
    loop = asyncio.get_running_loop()
    os.close(to_it)
    # A process blocked on a full pipe would not read that its input has ended.
    loop.add_reader(from_it, _drain, loop, from_it)
    try:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _PATIENCE_S)
                return
    finally:
        loop.remove_reader(from_it)
        os.close(from_it)


def _drain(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    try:
        ended = not os.read(descriptor, _PIECE_BYTES)
    except BlockingIOError:
        return
    if ended:
        loop.remove_reader(descriptor)
