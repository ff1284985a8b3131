"""One call as its host sees it while a worker node has it."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from runner.fleet.messages import NodeMessage, SentCall
from runner.steps.request import Request

__all__ = ["Again", "FarCall", "Gone", "Limit"]

_MOST_SAID = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of what there may be at once, for which a call counts.

    Attributes:
        key: The set of calls that count for it.
        most: Calls that it allows.
    """

    key: str
    most: int


class Again(Exception):
    """A call has to be placed again: it has not started, or may run twice."""


class Gone(Exception):
    """A call had begun, or may have, and nobody will ever say how it ended; the message says why."""


@dataclass(slots=True, kw_only=True, eq=False)
class FarCall:
    """One call.

    Attributes:
        request: The request.
        is_tool: Whether it is a tool call.
        is_idempotent: Whether it may be done twice.
        limits: What it counts for, that of all calls first.
        id: What it is called in the fleet.
        epoch: How often it was placed before.
        node: Which node has it.
        avoided: Which node did not take it.
        stays: Whether its user's calls went to that node before.
        sent_at: When it was sent there, in seconds of the monotonic clock.
        has_taken: Whether the node has said that it has it.
        has_begun: Whether it has said that its code runs.
    """

    request: Request
    is_tool: bool
    is_idempotent: bool
    limits: Sequence[Limit]
    id: str = ""
    epoch: int = 0
    node: str | None = None
    avoided: str = ""
    stays: bool = False
    sent_at: float = 0.0
    has_taken: bool = False
    has_begun: bool = False
    lost: int = 0
    _said: "asyncio.Queue[NodeMessage | Exception]" = field(default_factory=lambda: asyncio.Queue(_MOST_SAID))

    def __post_init__(self) -> None:
        # Some requests ask for something themselves, and have the id of their own call then.
        self.id = f"{self.request.id}.{secrets.token_hex(4)}"

    def record(self, *, version: int, release: str, host: str) -> SentCall:
        """Return what the node gets."""
        request = self.request
        return SentCall(
            version=version,
            release=release,
            call=self.id,
            epoch=self.epoch,
            host=host,
            is_tool=self.is_tool,
            user=request.user.name,
            session=request.user.session,
            method=request.method,
            params=dict(request.params),
            facts=request.facts.to_json(),
            levels=sorted(request.levels),
            is_awaited=request.is_awaited,
            stays=self.stays,
        )

    def placed(self, node: str, *, stays: bool, now: float) -> None:
        """Note that a node gets it."""
        self.node, self.stays, self.sent_at = node, stays, now
        self.has_taken = self.has_begun = False
        self._said = asyncio.Queue(_MOST_SAID)

    def hear(self, message: NodeMessage) -> None:
        """Take what a node says. What is said of an earlier placing counts no more."""
        if message.epoch != self.epoch:
            return
        if message.kind == "took":
            self.has_taken = True
        elif message.kind == "begun":
            self.has_taken = self.has_begun = True
        elif message.kind == "note" and self._said.qsize() >= _MOST_SAID // 2:
            # A client that reads nothing must not keep the end of its call from it.
            self.lost += 1
        else:
            self._put(message)

    def over(self, error: Exception) -> None:
        """End the waiting for what the node says."""
        self._put(error)

    async def next(self) -> NodeMessage:
        """Return what its node says next.

        Raises:
            Again: It has to be placed again.
            Gone: It had begun, and its node is gone.
        """
        message = await self._said.get()
        if isinstance(message, Exception):
            raise message
        return message

    def _put(self, message: NodeMessage | Exception) -> None:
        if self._said.full():
            self._said.get_nowait()
        self._said.put_nowait(message)
