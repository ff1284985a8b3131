"""The worker's line to its host: notifications out, requests out and their replies in."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from mcp.shared.exceptions import MCPError

from sandbox.frames import FrameKind
from sandbox.inside.program import CallOver, Channel

__all__ = ["HostLine", "Waiting", "strict"]


# Of the whole process: a reply must never be taken for that to a request of another call.
_numbers = itertools.count(1)


Waiting = dict[int, asyncio.Future[dict[str, Any]]]


class HostLine:
    """Notifications and requests of one call, from a worker to its host.

    Args:
        channel: The channel of the call.
        loop: The loop that all calls of the process run on.
        waiting: Requests of all calls of the process that have no reply yet. A task that a call has left
            behind may end in the middle of another call, which must go on to hear its own replies.
    """

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        self._channel = channel
        self._loop = loop
        self._waiting = waiting
        self._ended: Callable[[], object] | None = None

    def listen(self, ended: Callable[[], object]) -> None:
        """Read from now on, where the channel is one call's own, and call `ended` at its end."""
        self._ended = ended
        self._loop.add_reader(self._channel.connection.fileno(), self._readable)

    def close(self) -> None:
        """Read no more."""
        self._loop.remove_reader(self._channel.connection.fileno())

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification to the host; nobody hears one that comes after the answer."""
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


def strict(value: Any) -> Any:
    """Return `value` as strict JSON: NaN and infinities, which JSON lacks, become null."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return json.loads(json.dumps(value), parse_constant=lambda _name: None)
    return value
