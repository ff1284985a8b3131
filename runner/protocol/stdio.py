"""MCP over the standard input and output of this process.

Source: MCP specification 2025-11-25 and 2026-07-28, "Transports, stdio".
"""

import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from fastmcp import FastMCP

from runner.errors import StartError
from runner.protocol.direct import Answerer
from runner.protocol.direct_stdio import DirectLines
from runner.protocol.internals.host import serve_streams
from runner.protocol.internals.types import SessionMessage
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.protocol.messages import Unreadable
from runner.protocol.unanswered import Unanswered

__all__ = ["serve_stdio"]

_ABOVE_STANDARD = 3


async def serve_stdio(app: FastMCP, unanswered: Unanswered, *, direct: Answerer | None = None) -> None:
    """Serve an application until the client closes standard input.

    Args:
        app: The application.
        unanswered: Hears of every call and of every answer.
        direct: Answers usual calls without `app`, where they need nothing of it.

    Raises:
        StartError: There is no standard input or output to speak over.
    """
    if sys.stdin is None or sys.stdout is None:
        raise StartError(
            "MCP over stdio needs standard input and output, and one of them is closed; leave both open"
        )
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    with _claimed(0, null) as incoming, _claimed(1, os.dup(2)) as outgoing:
        answers = _Answers(outgoing, unanswered)
        lines = _Requests(incoming, answers, unanswered)
        await serve_streams(app, lines if direct is None else DirectLines(lines, answers, direct), answers)


class _Requests(IncomingLines):
    def __init__(self, descriptor: int, refusals: OutgoingLines, unanswered: Unanswered) -> None:
        super().__init__(descriptor, refusals)
        self._unanswered = unanswered

    async def __anext__(self) -> SessionMessage | Unreadable:
        item = await super().__anext__()
        if isinstance(item, SessionMessage):
            self._unanswered.heard(item.message)
        return item


class _Answers(OutgoingLines):
    def __init__(self, descriptor: int, unanswered: Unanswered) -> None:
        super().__init__(descriptor)
        self._unanswered = unanswered

    async def send(self, item: SessionMessage) -> None:
        try:
            await super().send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # A client that takes no more of it will not take it later either.
            self._unanswered.said(item.message)
            raise
        self._unanswered.said(item.message)


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
