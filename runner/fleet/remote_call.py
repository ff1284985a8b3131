"""Host's record of one call that a worker node executes."""

import asyncio
import secrets
from dataclasses import dataclass, field

from runner.fleet.messages import NodeMessage, NodeStatus
from runner.steps.request import Request

__all__ = ["Again", "Gone", "RemoteCall"]

_MOST_WAITING = 1000


class Again(Exception):
    """A call must be sent to a node again: its code has not started, or it is idempotent."""


class Gone(Exception):
    """A call started, or may have, and its outcome is lost; the message is the reason."""


@dataclass(slots=True, kw_only=True, eq=False)
class RemoteCall:
    """One call at one node. A call that is sent again is another one, with another id.

    Attributes:
        request: The request.
        is_idempotent: Whether it may run twice.
        id: Its id in the fleet.
        node: Its node, once there is one.
        waits: Whether it has no node yet, or waits at its node for its turn.
        has_started: Whether its code has started, as far as the host knows.
        dropped: Number of notifications that its client did not take in time.
    """

    request: Request
    is_idempotent: bool
    id: str = field(init=False)
    node: str | None = None
    waits: bool = True
    has_started: bool = False
    dropped: int = 0
    _beat: int = -1
    _missed: int = 0
    _received: "asyncio.Queue[NodeMessage | Exception]" = field(
        default_factory=lambda: asyncio.Queue(_MOST_WAITING)
    )

    def __post_init__(self) -> None:
        self.id = f"{self.request.id}.{secrets.token_hex(4)}"

    def receive(self, message: NodeMessage | Exception) -> None:
        """Queue a message of the node, or the reason why there will be none."""
        if isinstance(message, NodeMessage) and message.kind == "note":
            if self._received.qsize() >= _MOST_WAITING // 2:
                # Notifications that a client does not read must leave room for the end of its call.
                self.dropped += 1
                return
        elif self._received.full():
            self._received.get_nowait()
        self._received.put_nowait(message)

    def missed_in(self, status: NodeStatus) -> int:
        """Update from a status of its node; return the number of statuses in a row without this call."""
        has_started = status.calls.get(self.id)
        self.has_started |= has_started is True
        self.waits = has_started is False
        if has_started is not None:
            self._missed = 0
        elif status.beat != self._beat:
            # A Redis without memory keeps an old one.
            self._missed += 1
        self._beat = status.beat
        return self._missed

    async def next(self) -> NodeMessage:
        """Return the next message of the node.

        Raises:
            Again: The call must be sent again.
            Gone: It had started, and its node is gone.
        """
        message = await self._received.get()
        if isinstance(message, Exception):
            raise message
        return message
