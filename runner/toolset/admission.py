"""Admission of calls: limits in total and per user, and bounded queues in which users take turns.

A user at their own limit waits without delaying other users. `FairQueue` decides, and `Admission` waits.

Each user has a queue of their own. Turns are times of a virtual clock, which counts calls instead of seconds.
A call's turn is one after that of the user's previous call, and not before the clock's time when it begins
to wait. So a user with a thousand waiting calls is one turn away from a user with one.

A call may need places of several kinds at once, such as one of its tool. Then later calls of its user that
need none of that kind overtake it; the turns among users do not change.

A call that should count for more than another gets a higher `cost`; no other change is needed.

Source: Goyal, Vin and Cheng, "Start-time fair queueing", 1996.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Self, TypeVar

from runner.contract.error_messages import busy
from runner.errors import CallError, Code
from runner.settings.named_limits import Counted
from runner.settings.parts import CallSettings

__all__ = ["Admission", "FairQueue", "Full", "PlaceDemand", "inside_place"]

T = TypeVar("T")

# Above so many users, those without running or waiting calls are dropped.
_FORGET_ABOVE = 1000

_inside: ContextVar[bool] = ContextVar("inside_place", default=False)


@contextmanager
def inside_place() -> Iterator[None]:
    """Let calls that start in this context use the place of the call that waits for them."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


_RETRY_AFTER_S = 5
# Each waiting call holds its request in memory; a queue of this length takes a minute at full load.
_MAX_QUEUE = 1024


class Full(Exception):
    """No room to wait."""


class PlaceDemand(NamedTuple):
    """A kind of place that a call needs besides a place in total and one of its user.

    Attributes:
        kind: Identifies the kind.
        most: Most calls that may have such a place at once.
    """

    kind: tuple[str, ...]
    most: int


@dataclass(slots=True)
class _User(Generic[T]):
    """One user's calls. `turn` is the turn of the next to start."""

    running: int = 0
    turn: float = 0.0
    waiting: deque[tuple[T, Sequence[PlaceDemand]]] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True, eq=False)
class FairQueue(Generic[T]):
    """Counter of running calls, and order of waiting ones. A waiting call is any object of the caller.

    Attributes:
        max_calls: Calls running at once.
        max_calls_per_user: Calls of one user running at once.
        max_queue: Calls waiting at once.
    """

    max_calls: int
    max_calls_per_user: int
    max_queue: int = _MAX_QUEUE
    _users: dict[str, _User[T]] = field(init=False, default_factory=dict)
    _places: dict[tuple[str, ...], int] = field(init=False, default_factory=dict)
    _running: int = field(init=False, default=0)
    _waiting: int = field(init=False, default=0)
    _clock: float = field(init=False, default=0.0)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the numbers of running and waiting calls."""
        return self._running, self._waiting

    def running(self, user: str) -> int:
        """Return the number of running calls of a user."""
        known = self._users.get(user)
        return 0 if known is None else known.running

    def starts(self, user: str, places: Sequence[PlaceDemand] = (), *, cost: float = 1.0) -> bool:
        """Return whether a call may start now, and count it if so."""
        mine = self._of(user)
        if not self._may_run(mine) or (places and not self._has_room(places)):
            return False
        mine.turn = max(mine.turn, self._clock)
        self._start(mine, places, cost)
        return True

    def starts_inside(self, places: Sequence[PlaceDemand]) -> bool:
        """Return whether a call may start that uses its waiting caller's place; if so, count its kinds."""
        if not self._has_room(places):
            return False
        self._count(places)
        return True

    def leave_inside(self, places: Sequence[PlaceDemand]) -> Sequence[T]:
        """Release the places of such a call; return the calls that start now, which are counted."""
        self._discount(places)
        return self.next_ones() if places and self._waiting else ()

    def wait(self, user: str, call: T, places: Sequence[PlaceDemand] = ()) -> T | None:
        """Queue a call; return a waiting call that is evicted for it, if any.

        If the queue is full, the user with the most waiting calls loses their latest to a user with fewer.

        Raises:
            Full: It cannot wait.
        """
        mine = self._of(user)
        gone = self._give_up(mine) if self._waiting >= self.max_queue else None
        if not mine.waiting:
            mine.turn = max(mine.turn, self._clock)
        mine.waiting.append((call, places))
        self._waiting += 1
        return gone

    def withdraw(self, user: str, call: T) -> bool:
        """Remove a call from the queue; False if it does not wait."""
        known = self._users.get(user)
        mine = None if known is None else next((one for one in known.waiting if one[0] == call), None)
        if known is None or mine is None:
            return False
        known.waiting.remove(mine)
        self._waiting -= 1
        return True

    def leave(self, user: str, places: Sequence[PlaceDemand] = ()) -> Sequence[T]:
        """Record the end of a running call; return the calls that start now, which are counted."""
        self._users[user].running -= 1
        self._running -= 1
        if places:
            self._discount(places)
        return self.next_ones() if self._waiting else ()

    def next_ones(self) -> Sequence[T]:
        """Return the calls that start now, which are counted; also needed after limits were raised."""
        started: list[T] = []
        while (first := self._next()) is not None:
            user, entry = first
            user.waiting.remove(entry)
            self._waiting -= 1
            self._start(user, entry[1], 1.0)
            started.append(entry[0])
        return started

    def _next(self) -> tuple[_User[T], tuple[T, Sequence[PlaceDemand]]] | None:
        """Return the user whose turn it is, and the call; of equal turns, the user who was known first."""
        able = (user for user in self._users.values() if user.waiting and self._may_run(user))
        for user in sorted(able, key=lambda user: user.turn):
            for entry in user.waiting:
                if self._has_room(entry[1]):
                    return user, entry
        return None

    def _has_room(self, places: Sequence[PlaceDemand]) -> bool:
        return all(self._places.get(place.kind, 0) < place.most for place in places)

    def _may_run(self, user: _User[T]) -> bool:
        return self._running < self.max_calls and user.running < self.max_calls_per_user

    def _count(self, places: Sequence[PlaceDemand]) -> None:
        for place in places:
            self._places[place.kind] = self._places.get(place.kind, 0) + 1

    def _discount(self, places: Sequence[PlaceDemand]) -> None:
        for place in places:
            self._places[place.kind] -= 1
            if not self._places[place.kind]:
                del self._places[place.kind]

    def _start(self, user: _User[T], places: Sequence[PlaceDemand], cost: float) -> None:
        if places:
            self._count(places)
        self._clock = max(self._clock, user.turn)
        user.turn += cost
        user.running += 1
        self._running += 1

    def _give_up(self, mine: _User[T]) -> T:
        most = max(self._users.values(), key=lambda user: len(user.waiting))
        # Only for a gain: otherwise two users would evict each other's calls forever.
        if len(most.waiting) <= len(mine.waiting) + 1:
            raise Full
        self._waiting -= 1
        return most.waiting.pop()[0]

    def _of(self, user: str) -> _User[T]:
        if len(self._users) > _FORGET_ABOVE and user not in self._users:
            self._users = {name: known for name, known in self._users.items() if self._is_owed(known)}
        return self._users.setdefault(user, _User())

    def _is_owed(self, user: _User[T]) -> bool:
        """Return whether dropping a user would change a turn; while no call waits, turns do not matter."""
        return bool(user.running or user.waiting) or (self._waiting > 0 and user.turn > self._clock)


@dataclass(slots=True)
class Admission:
    """Admission of calls, with bounded waiting.

    Attributes:
        queue: The queue that decides. If it is full, a further call evicts the latest of the user with the
            most waiting calls; if that is its own user, it is refused itself.
    """

    queue: "FairQueue[_Waiting]"

    @classmethod
    def of(cls, settings: CallSettings) -> Self:
        """Return the admission of settings."""
        return cls(FairQueue(max_calls=settings.max_calls, max_calls_per_user=settings.max_calls_per_user))

    def rebound(self, settings: CallSettings) -> None:
        """Apply other limits. Running and waiting calls continue; waiting calls that may run now start."""
        self.queue.max_calls = settings.max_calls
        self.queue.max_calls_per_user = settings.max_calls_per_user
        self._begin(self.queue.next_ones())

    @asynccontextmanager
    async def admit(self, user: str, mine: Sequence[Counted] = ()) -> AsyncIterator[None]:
        """Hold a place for one call of `user`, waiting for one if need be.

        A call whose caller waits for it uses the caller's place, and takes only places of further kinds. It
        never queues: two calls that each hold a place and wait for the other's would deadlock.

        Args:
            user: The user of the call.
            mine: The named limits that it counts towards.

        Raises:
            CallError: `E_BUSY`; the queue is full, or a named limit is reached; the error names it.
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
            # Empty if no call waits.
            if starting := queue.leave_inside(places) if is_inside else queue.leave(user, places):
                self._begin(starting)

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
            raise busy(_RETRY_AFTER_S, value=self.queue.max_queue) from None
        if gone is not None:
            gone.refuse(busy(_RETRY_AFTER_S, value=self.queue.max_queue))
        try:
            await mine.turn
        except asyncio.CancelledError:
            if not self.queue.withdraw(user, mine) and not mine.is_refused:
                # The place was granted at the same moment: pass it on.
                self._begin(self.queue.leave(user, places))
            raise

    def _begin(self, calls: Iterable["_Waiting"]) -> None:
        for call in calls:
            # A call that was just cancelled passes its place on when its task runs.
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
