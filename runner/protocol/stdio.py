"""MCP over the standard input and output of this process.

Source: MCP specification 2025-11-25 and 2026-07-28, "Transports, stdio".
"""

import asyncio
import fcntl
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from fastmcp import FastMCP
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

from runner.errors import StartError
from runner.protocol.internals.host import serve_streams
from runner.protocol.lines import OutgoingLines
from runner.protocol.tool_calls import Answerer, CallsOverLines

__all__ = ["Unanswered", "serve_stdio"]

_ABOVE_STANDARD = 3
_LOOK_S = 0.2
# What is answered when it ends, which is for its client to decide.
_UNENDING = ("subscriptions/listen",)


@dataclass(slots=True, eq=False)
class Unanswered:
    """The requests of a client that have no answer yet.

    Over HTTP each response belongs to a request, and the web server waits for open ones. On stdio nothing
    tracks them, and a process that exits would lose its unsent answers.
    """

    _requests: set[str] = field(init=False, default_factory=set)
    _none: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def received(self, message: JSONRPCMessage) -> None:
        """Note a request of the client, or that it wants no answer to one any more."""
        if isinstance(message, JSONRPCRequest) and message.method not in _UNENDING:
            self._requests.add(str(message.id))
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.answered((message.params or {}).get("requestId"))

    def answered(self, request_id: object) -> None:
        """Record that a request, if it is one, needs no answer any more."""
        self._requests.discard(str(request_id))
        if not self._requests:
            self._none.set()

    def __bool__(self) -> bool:
        return bool(self._requests)

    async def none(self, within_s: float) -> None:
        """Wait until there are none, for so many seconds at most: the client may never read them."""
        if self._requests:
            self._none.clear()
            waiter = asyncio.create_task(self._none.wait())
            await asyncio.wait({waiter}, timeout=within_s)
            waiter.cancel()


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
        answers = OutgoingLines(outgoing, unanswered.answered)
        # The SDK ends what is in flight once it knows of the end.
        patience = _Patience(outgoing, drain_s)
        lines = CallsOverLines(
            incoming,
            answers,
            direct,
            received=unanswered.received,
            ended=partial(patience.wait, unanswered),
        )
        await serve_streams(app, lines, answers)


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
