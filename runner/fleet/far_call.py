"""One call as its host sees it while a worker node has it."""

import asyncio
import secrets
from dataclasses import dataclass, field

from runner.fleet.messages import NodeMessage, NodeStatus
from runner.steps.request import Request

__all__ = ["Again", "FarCall", "Gone"]

_MOST_WAITING = 1000


class Again(Exception):
    """A call has to be sent to a node again: it has not begun, or may run twice."""


class Gone(Exception):
    """A call had begun, or may have, and its end will never be known; the message says why."""


@dataclass(slots=True, kw_only=True, eq=False)
class FarCall:
    """One call at one node. A call that is sent again is another one, with another id.

    Attributes:
        request: The request.
        is_idempotent: Whether it may run twice.
        id: Its id in the fleet.
        node: Its node, once there is one.
        waits: Whether it has no node yet, or waits at its node for its turn.
        has_begun: Whether its code has begun to run, as far as the host knows.
        dropped: Number of notifications that its client did not take in time.
    """

    request: Request
    is_idempotent: bool
    id: str = field(init=False)
    node: str | None = None
    waits: bool = True
    has_begun: bool = False
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
                # A client that reads nothing must not keep the end of its call from it.
                self.dropped += 1
                return
        elif self._received.full():
            self._received.get_nowait()
        self._received.put_nowait(message)

    def missed_in(self, status: NodeStatus) -> int:
        """Take over a status of its node; return in how many of them in a row it was missing."""
        has_begun = status.calls.get(self.id)
        self.has_begun |= has_begun is True
        self.waits = has_begun is False
        if has_begun is not None:
            self._missed = 0
        elif status.beat != self._beat:
            # A Redis without memory keeps an old one.
            self._missed += 1
        self._beat = status.beat
        return self._missed

    async def next(self) -> NodeMessage:
        """Return the next message of the node.

        Raises:
            Again: The call has to be sent again.
            Gone: It had begun, and its node is gone.
        """
        message = await self._received.get()
        if isinstance(message, Exception):
            raise message
        return message
