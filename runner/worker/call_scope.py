"""The state of each call in a worker: its line to the host, and facts recorded besides its answer.

Concurrent calls are distinguished by a context variable, which tasks and the threads of sync tools inherit.
A plain thread has no context, and a task may outlive its call: both get the call that started last.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from mcp.shared.exceptions import MCPError

from sandbox.frames import FrameKind
from sandbox.inside.program import CallOver, Channel

__all__ = ["HostLine", "ServedCall", "Waiting", "current", "entered", "strict"]

# Unique in the process: a reply must never be matched to a request of another call.
_numbers = itertools.count(1)

Waiting = dict[int, asyncio.Future[dict[str, Any]]]


class HostLine:
    """Notifications and requests of one call, from a worker to its host.

    Args:
        channel: The channel of the call.
        loop: The event loop of all calls of the process.
        waiting: Requests of all calls of the process that have no reply yet. A task left behind by one call
            may end during another call, which must still receive its own replies.
    """

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        self._channel = channel
        self._loop = loop
        self._waiting = waiting
        self._ended: Callable[[], object] | None = None

    def listen(self, ended: Callable[[], object]) -> None:
        """Start reading, if the channel belongs to one call only, and call `ended` at end of file."""
        self._ended = ended
        self._loop.add_reader(self._channel.connection.fileno(), self._readable)

    def close(self) -> None:
        """Stop reading."""
        self._loop.remove_reader(self._channel.connection.fileno())

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification to the host; after the answer it is dropped."""
        with contextlib.suppress(CallOver):
            self._channel.send(FrameKind.NOTIFY, strict({"method": method, "params": params}))

    async def request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send the host a request and return its answer.

        Raises:
            MCPError: The host, or the client behind it, refused.
            CallOver: The call has been answered.
        """
        number = next(_numbers)
        future = self._waiting[number] = self._loop.create_future()
        if len(self._waiting) == 1 and self._ended is None:
            self._loop.add_reader(self._channel.connection.fileno(), self._readable)
        try:
            self._channel.send(FrameKind.REQUEST, strict({"id": number, "method": method, "params": params}))
            reply = await future
        finally:
            self._waiting.pop(number, None)
            if not self._waiting and self._ended is None:
                self._loop.remove_reader(self._channel.connection.fileno())
        if "error" in reply:
            raise MCPError(**reply["error"])
        return dict(reply["result"])

    def _readable(self) -> None:
        frame = self._channel.receive()
        if frame is None and self._ended is not None:
            self.close()
            self._ended()
        if frame is None or not isinstance(frame[1], dict):
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionError("the host has let go"))
            return
        waiting = self._waiting.get(int(frame[1]["id"]))
        if waiting is not None and not waiting.done():
            waiting.set_result(frame[1])


@dataclass(slots=True, kw_only=True, eq=False)
class ServedCall:
    """One call.

    Attributes:
        channel: Explains its denials.
        line: Its line to the host.
        most_bytes: Longest answer.
        known: Values of session state that were sent with it, by `full_key`.
        raised: The exception of its tool, in JSON; `told` is the only message for clients, if masked.
    """

    channel: Channel
    line: HostLine
    most_bytes: int
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    raised: dict[str, object] | None = None


_current: ContextVar[ServedCall | None] = ContextVar("call_scope", default=None)
# The calls in flight, the latest last; the very last call stays after its end.
_calls: list[ServedCall] = []


def current() -> ServedCall | None:
    """Return the call of this context; in a thread or task without a running call, the latest one."""
    mine = _current.get()
    if mine is not None and not mine.channel.is_over:
        return mine
    return _calls[-1] if _calls else mine


@contextlib.contextmanager
def entered(scope: ServedCall) -> Iterator[None]:
    """Run a call in this context."""
    _current.set(scope)
    _calls[:] = [one for one in _calls if not one.channel.is_over]
    _calls.append(scope)
    try:
        yield
    finally:
        if len(_calls) > 1:
            _calls.remove(scope)


def strict(value: Any) -> Any:
    """Return `value` as strict JSON: NaN and infinities, which JSON lacks, become null."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return json.loads(json.dumps(value), parse_constant=lambda _name: None)
    return value
