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
# Requests that are answered only once their client ends them.
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
        """Record a request of the client, or its cancellation of one."""
        if isinstance(message, JSONRPCRequest) and message.method not in _UNENDING:
            self._requests.add(str(message.id))
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.answered((message.params or {}).get("requestId"))

    def answered(self, request_id: object) -> None:
        """Record that a request needs no answer any more; ignore an id that names none."""
        self._requests.discard(str(request_id))
        if not self._requests:
            self._none.set()

    def __bool__(self) -> bool:
        return bool(self._requests)

    async def none(self, within_s: float) -> None:
        """Wait up to `within_s` seconds until there are none: the client may never read its answers."""
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
        direct: Answers usual calls without `app`; None: `app` answers them.

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
        # The SDK cancels the requests in flight at the end of input, so wait for answers first.
        ended = partial(_wait_for_answers, unanswered, outgoing, drain_s)
        lines = CallsOverLines(incoming, answers, direct, received=unanswered.received, ended=ended)
        await serve_streams(app, lines, answers)


async def _wait_for_answers(unanswered: Unanswered, outgoing: int, drain_s: float) -> None:
    """Wait for answers after the end of input, as with `server < requests.jsonl`."""
    # An empty event mask still reports a pipe without a reader, or a socket without a peer.
    poll = select.poll()
    poll.register(outgoing, 0)
    ends_at = time.monotonic() + drain_s
    while unanswered and (left_s := ends_at - time.monotonic()) > 0 and not poll.poll(0):
        await unanswered.none(min(left_s, _LOOK_S))


@contextmanager
def _claimed(number: int, instead: int) -> Iterator[int]:
    """Yield a duplicate of a standard stream, whose number refers to `instead` meanwhile.

    So a stray print or read does not corrupt the protocol.
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
    """Make a pipe or socket non-blocking until the block ends."""
    # Not a terminal: other processes share its flags and do not expect the change.
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
