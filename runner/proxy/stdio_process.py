"""A child process that serves MCP over stdio: its three streams, its start, and its end with all descendants.

It may write anything to its standard error, in any amount and form. So each line gets a prefix with the
server's name, which our own lines never have; it is escaped for terminals and truncated. The lines of each
server are rate limited. A process that does not read the answers to its requests is disconnected.

Source: MCP specification 2025-11-25, "Lifecycle, Shutdown, stdio" and "Transports, stdio".
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import signal
import struct
import sys
import termios
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TextIO

import anyio
from mcp_types import JSONRPCError, JSONRPCResponse

from runner.formats.terminal_text import one_line
from runner.protocol.internals.proxy import mark_sent
from runner.protocol.internals.types import SessionMessage
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.system.now_and_then import NowAndThen
from sandbox.host.paced_pipe import PacedPipe
from sandbox.loop_share import LoopShare
from sandbox.outcome import describe_status
from sandbox.token_bucket import TokenBucket

__all__ = [
    "DIVIDER",
    "TOO_MANY_REQUESTS",
    "AnswerLines",
    "LastWords",
    "ServerLines",
    "ServerLog",
    "log_budget",
    "plain_line",
    "run_command",
]

log = logging.getLogger(__name__)

TOO_MANY_REQUESTS = "it had too many requests of its own open"
"""Reason to disconnect a server that sends requests without end."""

# Limit of answers that the server has not read.
_MOST_ANSWERS = 256
_SHOWN_CHARS = 100
_PATIENCE_S = 2.0

DIVIDER = " / "
"""Separator of the last lines of a process when they are joined."""

_LINE_BYTES = 4096
# Minimum cost of a line, in bytes of the budget: a burst has at most 2,600 lines.
_LEAST_COST = 100
# The rest of a line, and its end, if any.
_PARTS = re.compile(rb"([^\r\n]*+)([\r\n]*+)")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_KEPT_BYTES = 2000
_WAIT_S = 1.0
# Capacity, in pieces, of the largest pipe of an unprivileged process.
_MOST_LEFT_PIECES = 16


def log_budget() -> TokenBucket:
    """Return the budget in bytes for the output of all processes of one server.

    The burst has room for the tracebacks of a failed start. The rate is journald's default for a service:
    10,000 messages in 30 seconds, of two hundred bytes each.
    """
    return TokenBucket(at_once=256 * 1024, per_s=64 * 1024)


@dataclass(slots=True, kw_only=True, eq=False)
class ServerLog:
    """Output of one process.

    Attributes:
        server: Name of the server.
        budget: Rate limit for forwarding the output.
        dropped: Bytes not forwarded since the last report, which resets it to 0.
    """

    server: str
    budget: TokenBucket = field(default_factory=log_budget)
    dropped: int = 0
    _lead: str = field(init=False)
    _partial: bytes = b""
    _partial_bytes: int = 0

    def __post_init__(self) -> None:
        self._lead = f"stderr of {plain_line(self.server)}: "

    def passed(self, data: bytes, *, now: float) -> str:
        """Return the lines to write for a piece of its output; bytes beyond the budget are counted.

        The budget bounds the time, whatever the piece contains: it is not parsed beyond the first line that
        does not fit.
        """
        lines: list[str] = []
        for part in _PARTS.finditer(data):
            self._partial += part[1][: _LINE_BYTES - len(self._partial)]
            self._partial_bytes += len(part[1])
            if not (part[2] and self._partial_bytes):
                continue
            start, size = self._partial, self._partial_bytes
            self._partial, self._partial_bytes = b"", 0
            text = plain_line(start.decode("utf-8", "replace"))
            cut = f"… ({size} bytes)" if size > len(start) else ""
            line = f"{self._lead}{text}{cut}\n"
            # Short and invisible lines have a minimum cost, since each takes time.
            if not self.budget.takes(max(_LEAST_COST, len(start), len(line.encode())), now=now):
                self.dropped += size + len(data) - part.end()
                break
            if text.strip():
                lines.append(line)
        return "".join(lines)


def plain_line(text: str) -> str:
    """Return a text on one line, without colours, and with other invisible characters escaped."""
    return one_line(_COLOURS.sub("", text))


class LastWords:
    """Reader of one process's standard error, in the running loop, until the block ends.

    Args:
        server: Name of the server, the prefix of each forwarded line.
        budget: Rate limit for forwarding; None for a separate one.

    Attributes:
        file: Write end of the pipe, for the process; `wait` or the end of the block closes our copy.
    """

    def __init__(self, server: str, budget: TokenBucket | None = None) -> None:
        self._tail = b""
        self._log = ServerLog(server=server, budget=budget or log_budget())
        self._dropping = NowAndThen()
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        self.file: TextIO = open(writer, "w", encoding="utf-8")  # noqa: SIM115 - closed with the block
        self._pipe = PacedPipe(self._reader, LoopShare(), self._pass_on, end=self._end)
        self._ended = asyncio.Event()

    def __enter__(self) -> "LastWords":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.file.close()
        self._end()

    async def wait(self) -> str:
        """Return the stderr tail once the process has closed it, or after a second."""
        self.file.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _WAIT_S)
        lines = map(plain_line, self._tail.decode("utf-8", "replace").splitlines())
        return DIVIDER.join(line.strip() for line in lines if line.strip())[-_KEPT_BYTES:]

    def _pass_on(self, data: bytes, *, at_last: bool = False) -> None:
        now, self._tail = time.monotonic(), (self._tail + data)[-_KEPT_BYTES:]
        lines = self._log.passed(data, now=now)
        # Our own standard error may be closed, or None.
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(lines)
        if self._log.dropped and (at_last or self._dropping.due(now=now)):
            count, self._log.dropped = self._log.dropped, 0
            facts = {"server": self._log.server, "bytes": count, "passed_on_per_s": self._log.budget.per_s}
            log.warning("server stderr rate limited", extra=facts)

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        try:
            self._pipe.close(most_pieces=_MOST_LEFT_PIECES)
        finally:
            os.close(self._reader)
        # Its last line may have no line break.
        self._pass_on(b"\n", at_last=True)


class ServerLines(IncomingLines):
    """Messages from a server, one a line; an unreadable answer becomes an error with the reason.

    Attributes:
        ended: How the process ended, in words; None if it runs, or was ended by signals.
    """

    ended: str | None = None

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

    async def receive(self) -> SessionMessage:
        """Return the next message."""
        while True:
            item = await super().receive()
            if isinstance(item, SessionMessage):
                mark_sent(item.message)
                return item
            if item.id is not None and not item.is_request:
                return SessionMessage(JSONRPCError(jsonrpc="2.0", id=item.id, error=item.error))


class AnswerLines(OutgoingLines):
    """Messages to a server, one a line; it is disconnected if too many answers are unread.

    Args:
        descriptor: File descriptor to write to.

    Attributes:
        incoming: The messages from the server, once they are being read.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._pipe = descriptor
        self.incoming: IncomingLines | None = None
        self._waiting = 0

    def are_read(self) -> bool:
        """Return whether the process has read them all, even after it has exited."""
        (unread_bytes,) = struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)))
        return not unread_bytes

    async def send(self, item: SessionMessage) -> None:
        """Send a message as `OutgoingLines.send` does."""
        is_answer = isinstance(item.message, JSONRPCResponse | JSONRPCError)
        self._waiting += is_answer
        if self._waiting > _MOST_ANSWERS and self.incoming is not None:
            self.incoming.give_up(TOO_MANY_REQUESTS)
        try:
            await super().send(item)
        finally:
            self._waiting -= is_answer


@asynccontextmanager
async def run_command(
    command: Sequence[str], *, environment: Mapping[str, str], errors: TextIO, most_bytes: int
) -> AsyncIterator[tuple[ServerLines, AnswerLines]]:
    """Start a command, and yield its output and its input; end it with the block.

    Args:
        command: The program's absolute path, and its arguments.
        environment: Its complete environment.
        errors: Its standard error.
        most_bytes: Size limit of a message from it.

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
            # Its own process group: our signals do not reach it, and its signals reach its descendants.
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
        yield incoming, outgoing
    finally:
        # A cancellation meanwhile leaves the task running, so no process is orphaned.
        ending = asyncio.ensure_future(_end(process, to_it, from_it))
        with anyio.CancelScope(shield=True):
            code = await asyncio.shield(ending)
        if code is not None:
            # After a signal, `sandbox.inside.exec_main` exits as a shell does.
            number = -code if code < 0 else code - 128 if 128 < code < 128 + signal.NSIG else 0
            incoming.ended = describe_status(number or code << 8)


async def _end(process: Process, to_it: int, from_it: int) -> int | None:
    """Wait for a process to exit, else end it with signals; close our ends of its pipes.

    Returns:
        Its exit status; None if it was ended with signals.
    """
    os.close(to_it)
    # A process blocked on a full output pipe would not notice the end of its input.
    draining = PacedPipe(from_it, LoopShare(), lambda _piece: None)
    try:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                code = await asyncio.wait_for(process.wait(), _PATIENCE_S)
                return code if number is None else None
    finally:
        draining.close(most_pieces=0)
        os.close(from_it)
    return None
