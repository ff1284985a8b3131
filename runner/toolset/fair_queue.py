"""Choice of the next call if more wait than may run: users take turns. Decides only, never waits.

Each user has a queue of their own. A clock that counts calls instead of seconds says whose turn it is: a
call's turn comes one after that of the same user's call before, and no earlier than the clock stands when
it begins to wait. So a user with a thousand calls waiting is one turn away from a user with one.

A call may have to have a place of several kinds at once, such as one of its tool: then those of its user
that need none of that kind overtake it, and among users the turns stay.

A call that is to count for more than another gets a higher `cost`; nothing else has to change for it.

Source: Goyal, Vin and Cheng, "Start-time fair queueing", 1996.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

__all__ = ["FairQueue", "Full", "PlaceDemand"]

T = TypeVar("T")

# Users who neither run nor wait are forgotten at intervals.
_FORGET_ABOVE = 1000


class Full(Exception):
    """No room to wait."""


class PlaceDemand(NamedTuple):
    """A kind of place that a call needs beside one in all and one of its user.

    Attributes:
        kind: What tells it from others.
        most: Calls that may have one at the same time.
    """

    kind: tuple[str, ...]
    most: int


@dataclass(slots=True)
class _User(Generic[T]):
    """One user's calls. `turn` is that of the next to start."""

    running: int = 0
    turn: float = 0.0
    waiting: deque[tuple[T, Sequence[PlaceDemand]]] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True, eq=False)
class FairQueue(Generic[T]):
    """Counts what runs, and orders what waits. What waits is whatever the caller knows it by.

    Attributes:
        max_calls: Calls running at once.
        max_calls_per_user: Calls of one user running at once.
        max_queue: Calls waiting at once.
    """

    max_calls: int
    max_calls_per_user: int
    max_queue: int
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
        """Return whether a call with the place of a caller that waits for it may start; count its kinds."""
        if not self._has_room(places):
            return False
        self._count(places)
        return True

    def leave_inside(self, places: Sequence[PlaceDemand]) -> Sequence[T]:
        """Release the places of such a call; return the calls that start now, which are counted."""
        self._discount(places)
        return self.next_ones() if places and self._waiting else ()

    def wait(self, user: str, call: T, places: Sequence[PlaceDemand] = ()) -> T | None:
        """Let a call wait; return one that has to go for it, if one has.

        Where the queue of all is full, the user with most waiting loses their latest for a user with fewer.

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
        """Let a call wait no more; False if it does not wait."""
        known = self._users.get(user)
        mine = None if known is None else next((one for one in known.waiting if one[0] == call), None)
        if known is None or mine is None:
            return False
        known.waiting.remove(mine)
        self._waiting -= 1
        return True

    def leave(self, user: str, places: Sequence[PlaceDemand] = ()) -> Sequence[T]:
        """Take note that a running call has ended; return those that start now, which are counted."""
        self._users[user].running -= 1
        self._running -= 1
        if places:
            self._discount(places)
        return self.next_ones() if self._waiting else ()

    def next_ones(self) -> Sequence[T]:
        """Return the calls that start now, which are counted; also after bounds have been raised."""
        started: list[T] = []
        while (first := self._next()) is not None:
            user, entry = first
            user.waiting.remove(entry)
            self._waiting -= 1
            self._start(user, entry[1], 1.0)
            started.append(entry[0])
        return started

    def _next(self) -> tuple[_User[T], tuple[T, Sequence[PlaceDemand]]] | None:
        """Return whose turn it is, and with which call; of two with one turn, who was known first."""
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
        # It must gain something: two who give way to each other would never get anywhere.
        if len(most.waiting) <= len(mine.waiting) + 1:
            raise Full
        self._waiting -= 1
        return most.waiting.pop()[0]

    def _of(self, user: str) -> _User[T]:
        if len(self._users) > _FORGET_ABOVE and user not in self._users:
            self._users = {name: known for name, known in self._users.items() if self._is_owed(known)}
        return self._users.setdefault(user, _User())

    def _is_owed(self, user: _User[T]) -> bool:
        """Return whether forgetting a user would change anything; while nobody waits, nobody is behind."""
        return bool(user.running or user.waiting) or (self._waiting > 0 and user.turn > self._clock)
