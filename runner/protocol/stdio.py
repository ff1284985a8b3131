"""MCP over the standard input and output of this process.

Source: MCP specification 2025-11-25 and 2026-07-28, "Transports, stdio".
"""

import fcntl
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from fastmcp import FastMCP

from runner.errors import StartError
from runner.protocol.internals.host import serve_streams
from runner.protocol.internals.types import SessionMessage
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.protocol.messages import Unreadable
from runner.protocol.tool_calls import Answerer, CallsOverLines
from runner.protocol.unanswered import Unanswered

__all__ = ["serve_stdio"]

_ABOVE_STANDARD = 3
_LOOK_S = 0.2


async def serve_stdio(
    app: FastMCP,
    unanswered: Unanswered,
    *,
    drain_s: float,
    direct: Answerer | None = None,
) -> None:
    """Serve an application until standard input ends and the requests on it have been answered.

    Args:
        app: The application.
        unanswered: Receives every request and every answer.
        drain_s: How long the answers may take after the end of input, in seconds.
        direct: Answers usual calls without `app`, where they need nothing of it.

    Raises:
        StartError: Standard input or output is closed.
    """
    if sys.stdin is None or sys.stdout is None:
        raise StartError(
            "MCP over stdio needs standard input and output, and one of them is closed; leave both open"
        )
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    with _claimed(0, null) as incoming, _claimed(1, os.dup(2)) as outgoing:
        answers = _Answers(outgoing, unanswered)
        lines = _Requests(incoming, answers, unanswered, _Patience(outgoing, drain_s))
        await serve_streams(app, lines if direct is None else CallsOverLines(lines, answers, direct), answers)


class _Requests(IncomingLines):
    def __init__(
        self,
        descriptor: int,
        refusals: OutgoingLines,
        unanswered: Unanswered,
        patience: "_Patience",
    ) -> None:
        super().__init__(descriptor, refusals)
        self._unanswered = unanswered
        self._patience = patience

    async def __anext__(self) -> SessionMessage | Unreadable:
        try:
            item = await super().__anext__()
        except StopAsyncIteration:
            # The SDK ends what is in flight once it knows of the end.
            await self._patience.wait(self._unanswered)
            raise
        if isinstance(item, SessionMessage):
            self._unanswered.received(item.message)
        return item


class _Patience:
    """The time for answers after the end of input, as with `server < requests.jsonl`."""

    def __init__(self, outgoing: int, drain_s: float) -> None:
        self._drain_s = drain_s
        # A pipe whose reader is gone, or a socket whose peer is: asked for nothing else.
        self._poll = select.poll()
        self._poll.register(outgoing, 0)

    async def wait(self, unanswered: Unanswered) -> None:
        """Wait for the answers, while the client can receive them."""
        ends_at = time.monotonic() + self._drain_s
        while unanswered and (left_s := ends_at - time.monotonic()) > 0 and not self._poll.poll(0):
            await unanswered.none(min(left_s, _LOOK_S))


class _Answers(OutgoingLines):
    def __init__(self, descriptor: int, unanswered: Unanswered) -> None:
        super().__init__(descriptor)
        self._unanswered = unanswered

    async def send_line(self, line: bytes, *, answers: str | int | None) -> None:
        try:
            await super().send_line(line, answers=answers)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # A client that takes no more of it will not take it later either.
            self._answered(answers)
            raise
        self._answered(answers)

    def _answered(self, id_: str | int | None) -> None:
        # A notification answers nothing.
        if id_ is not None:
            self._unanswered.answered(id_)


@contextmanager
def _claimed(number: int, instead: int) -> Iterator[int]:
    """Yield a descriptor of our own for a standard stream, whose number leads elsewhere meanwhile.

    So what prints or reads something without being asked to does not spoil the protocol.
    """
    own = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD)
    os.dup2(instead, number)
    os.close(instead)
    try:
        with _unblocked(own):
            yield own
    finally:
        os.dup2(own, number)
        os.close(own)


@contextmanager
def _unblocked(descriptor: int) -> Iterator[None]:
    """Let reads and writes of a pipe or socket not wait."""
    # Not those of a terminal, which others share who do not expect it.
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        yield
        return
    blocking = os.get_blocking(descriptor)
    os.set_blocking(descriptor, False)
    try:
        yield
    finally:
        os.set_blocking(descriptor, blocking)
