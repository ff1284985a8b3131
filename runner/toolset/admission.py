"""Admission of calls: limits in all and by user, and bounded queues in which users take turns.

A user at their own limit waits without holding up anybody else. `runner.toolset.fair_queue` decides; here is
waited.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Self

from runner.contract.error_messages import busy
from runner.errors import CallError, Code
from runner.settings.named_limits import Counted
from runner.settings.parts import CallSettings
from runner.toolset.fair_queue import FairQueue, Full, PlaceDemand

__all__ = ["Admission", "inside_place"]

_inside: ContextVar[bool] = ContextVar("inside_place", default=False)


@contextmanager
def inside_place() -> Iterator[None]:
    """Let calls that begin in this context use the place of the call that waits for them."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


_RETRY_AFTER_S = 5
# Each waiting call holds its request in memory; a queue of this length takes a minute at full load.
_MAX_QUEUE = 1024


@dataclass(slots=True, kw_only=True)
class Admission:
    """Counts running and waiting calls.

    Attributes:
        max_calls: Calls running at once.
        max_calls_per_user: Calls of one user running at once.
        max_queue: Calls waiting at once. For the next one, the latest of the user with most waiting is
            refused; where that is the caller, the next one is.
        queue: Decides.
    """

    max_calls: int
    max_calls_per_user: int
    max_queue: int = _MAX_QUEUE
    queue: "FairQueue[_Waiting]" = field(init=False)

    def __post_init__(self) -> None:
        self.queue = FairQueue(
            max_calls=self.max_calls,
            max_calls_per_user=self.max_calls_per_user,
            max_queue=self.max_queue,
        )

    @classmethod
    def of(cls, settings: CallSettings) -> Self:
        """Return the admission that settings ask for."""
        return cls(
            max_calls=settings.max_calls,
            max_calls_per_user=settings.max_calls_per_user,
        )

    def rebound(self, settings: CallSettings) -> None:
        """Take over other bounds. Calls that run or wait go on; those that may run now, do."""
        for name in ("max_calls", "max_calls_per_user"):
            value = getattr(settings, name)
            setattr(self, name, value)
            setattr(self.queue, name, value)
        self._begin(self.queue.next_ones())

    @asynccontextmanager
    async def admit(self, user: str, mine: Sequence[Counted] = ()) -> AsyncIterator[None]:
        """Hold a place for one call of `user`, waiting for one if need be.

        A call whose caller holds a place and waits for it takes only the further kinds of places. It never
        waits itself: two that held a place and waited for the other's would wait for ever.

        Args:
            user: Whose call it is.
            mine: The limits by name that it counts for.

        Raises:
            CallError: `E_BUSY`; the queue is full, or a limit by name is reached, and the error says which.
        """
        # Most servers have no limits by name.
        places = _places(mine) if mine else ()
        is_inside = _inside.get()
        if is_inside and not self.queue.starts_inside(places):
            names = ", ".join(place.kind[0] for place in places)
            raise CallError(
                Code.E_BUSY,
                f"The limit {names} is reached, and calls made by code do not queue; try again in "
                f"{_RETRY_AFTER_S} seconds",
                details={"retry_after_seconds": _RETRY_AFTER_S, "limit": names},
            )
        if not (is_inside or self.queue.starts(user, places)):
            await self._wait(user, places)
        try:
            yield
        finally:
            queue = self.queue
            self._begin(queue.leave_inside(places) if is_inside else queue.leave(user, places))

    @property
    def counts(self) -> tuple[int, int]:
        """Return the numbers of running and waiting calls."""
        return self.queue.counts

    async def _wait(self, user: str, places: Sequence[PlaceDemand]) -> None:
        """Wait for a place.

        Raises:
            CallError: `E_BUSY`; the queue is full.
        """
        mine = _Waiting(asyncio.get_running_loop().create_future())
        try:
            gone = self.queue.wait(user, mine, places)
        except Full:
            raise busy(_RETRY_AFTER_S, value=self.max_queue) from None
        if gone is not None:
            gone.refuse(busy(_RETRY_AFTER_S, value=self.max_queue))
        try:
            await mine.turn
        except asyncio.CancelledError:
            if not self.queue.withdraw(user, mine) and not mine.is_refused:
                # The place was given at the same moment: hand it on.
                self._begin(self.queue.leave(user, places))
            raise

    def _begin(self, calls: Iterable["_Waiting"]) -> None:
        for call in calls:
            # One that was cancelled just now hands its place on when its task has its turn.
            if not call.turn.done():
                call.turn.set_result(None)


def _places(mine: Sequence[Counted]) -> Sequence[PlaceDemand]:
    return [
        PlaceDemand((one.name, one.whose), one.limit.max_calls)
        for one in mine
        if one.limit.max_calls is not None
    ]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that waits for its turn."""

    turn: "asyncio.Future[None]"
    is_refused: bool = False

    def refuse(self, error: CallError) -> None:
        self.is_refused = True
        if not self.turn.done():
            self.turn.set_exception(error)
