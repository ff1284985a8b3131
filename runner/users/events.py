"""Events for the users' interfaces, from publishers to subscribers within this process.

An event is a small JSON object with a `type`. It belongs to a user, and mostly to a session; nobody else
receives it. Publishers never wait for a listener: one that does not keep up loses the oldest events and
receives their number. Publishing and listening belong to one event loop.

Source: requirement S0-68; rules I1, PR1 and H5 of the conformance cases.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LISTENERS_PER_USER", "LIST_CHANGED", "MISSED", "UPDATED", "Events", "Subscription"]

LIST_CHANGED = "list_changed"
"""The event that a list of the server has changed; `list` is tools, prompts or resources."""

UPDATED = "resource_updated"
"""The event that a resource of another server has changed."""

MISSED = "events_missed"
"""The event that events were lost; `count` is their number."""

LISTENERS_PER_USER = 32
"""The most subscribers of one user; check `Events.listeners` before adding one."""

_MAX_EVENTS = 1000
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(slots=True, kw_only=True, eq=False)
class Subscription:
    """Queue of one listener. An asynchronous iterator over events; it ends when closed.

    Attributes:
        user: The user whose events it receives.
        session: The session whose events it receives; None for all sessions of the user.
        max_events: Most events that it holds.
        max_bytes: Most bytes of JSON that it holds.
        missed: Number of events lost because it did not keep up.
    """

    user: str
    session: str | None
    max_events: int = _MAX_EVENTS
    max_bytes: int = _MAX_BYTES
    missed: int = 0
    _held: deque[tuple[Mapping[str, Any], int]] = field(default_factory=deque)
    _held_bytes: int = 0
    _closed: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def hears(self, *, user: str, session: str | None) -> bool:
        """Return whether an event of that user and session is for this listener."""
        return self.user == user and (self.session is None or session in (None, self.session))

    def offer(self, event: Mapping[str, Any], size: int) -> None:
        """Queue one more event; the oldest make room for it."""
        self._held.append((event, size))
        self._held_bytes += size
        while len(self._held) > self.max_events or self._held_bytes > self.max_bytes:
            _event, dropped = self._held.popleft()
            self._held_bytes -= dropped
            self.missed += 1
        self._changed.set()

    def close(self) -> None:
        """End the iteration once all queued events have been delivered."""
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._held:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        event, size = self._held.popleft()
        self._held_bytes -= size
        return event


@dataclass(slots=True, eq=False)
class Events:
    """All events of one server.

    Attributes:
        beyond: Also receives each event of a user, for other processes that serve the same users.
        lost: Number of events that it could not deliver to them.
    """

    beyond: Callable[[Mapping[str, Any], str, str | None], None] | None = None
    lost: int = 0
    _subscriptions: list[Subscription] = field(default_factory=list)

    def has_listener(self, *, user: str, session: str | None = None) -> bool:
        """Return whether anyone listens for that user and session."""
        # Checked on each call; usually there are no listeners.
        return bool(self._subscriptions) and any(
            each.hears(user=user, session=session) for each in self._subscriptions
        )

    def listeners(self, *, user: str) -> int:
        """Return the number of listeners to that user."""
        return sum(each.user == user for each in self._subscriptions)

    def publish(self, event: Mapping[str, Any], *, user: str, session: str | None = None) -> None:
        """Send an event to all listeners of that user and session.

        Args:
            event: A JSON object with a `type`; not changed afterwards.
            user: Its user.
            session: Its session; None for no particular one.
        """
        if self.beyond is not None:
            self.beyond(event, user, session)
        self.deliver(event, user=user, session=session)

    def deliver(self, event: Mapping[str, Any], *, user: str, session: str | None = None) -> None:
        """Send an event to listeners of this process, as `publish` does, and to no other host."""
        listening = [each for each in self._subscriptions if each.hears(user=user, session=session)]
        if not listening:
            return
        size = len(json.dumps(event))
        for subscription in listening:
            subscription.offer(event, size)

    def publish_to_all(self, event: Mapping[str, Any]) -> None:
        """Send an event that belongs to no user to all listeners.

        Args:
            event: A JSON object with a `type`; not changed afterwards.
        """
        size = len(json.dumps(event))
        for subscription in self._subscriptions:
            subscription.offer(event, size)

    @contextmanager
    def subscribe(
        self, *, user: str, session: str | None = None, max_events: int = _MAX_EVENTS
    ) -> Iterator[Subscription]:
        """Listen until the block ends.

        Args:
            user: The user whose events are received.
            session: The session whose events are received; None for all of the user.
            max_events: Most events that may be queued.
        """
        subscription = Subscription(user=user, session=session, max_events=max_events)
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)
            subscription.close()

    def note_missed(self) -> None:
        """Record for every listener that an unknown number of events was lost."""
        for subscription in self._subscriptions:
            subscription.missed += 1

    def close(self) -> None:
        """End all subscriptions: the server stops."""
        for subscription in self._subscriptions:
            subscription.close()
