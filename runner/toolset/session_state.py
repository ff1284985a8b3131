"""Session state of the tools: what `ctx.set_state` keeps between calls, held by the host in memory.

Entries belong to one user. A worker can name any key, so the user is ours to add, never the worker's.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.worker.wire import full_key

__all__ = ["Kept", "SessionState", "StateRefused"]

_MAX_VALUE_BYTES = 1024 * 1024
_MAX_USER_BYTES = 16 * 1024 * 1024


class StateRefused(ValueError):
    """A value is larger than session state may be; files belong in the home."""


class Kept(NamedTuple):
    """One value, as it is handed to another machine.

    Attributes:
        text: The value as JSON.
        left_s: For how many seconds it is kept from now on; None: as long as the session.
    """

    text: str
    left_s: float | None


@dataclass(slots=True)
class _Entry:
    text: str
    expires_at: float | None


@dataclass(slots=True)
class SessionState:
    """All session state of one server."""

    _users: dict[str, dict[str, _Entry]] = field(default_factory=dict)
    _changed: dict[str, set[str]] = field(default_factory=dict)

    def get(self, user: str, collection: str | None, key: str) -> tuple[Any, float | None]:
        """Return the value and its remaining seconds; None where there is none."""
        entries = self._users.get(user, {})
        entry = entries.get(full_key(collection, key))
        if entry is None:
            return None, None
        if entry.expires_at is not None and entry.expires_at <= time.monotonic():
            del entries[full_key(collection, key)]
            return None, None
        left = None if entry.expires_at is None else entry.expires_at - time.monotonic()
        return json.loads(entry.text), left

    def put(
        self, user: str, collection: str | None, key: str, value: Mapping[str, Any], ttl_s: float | None
    ) -> None:
        """Keep a value.

        Raises:
            StateRefused: It is above 1 MiB, or the user's state above 16 MiB.
        """
        text = json.dumps(value)
        entries = self._users.setdefault(user, {})
        name = full_key(collection, key)
        used = sum(len(e.text) + len(n) for n, e in entries.items() if n != name)
        if len(text) > _MAX_VALUE_BYTES or used + len(text) + len(name) > _MAX_USER_BYTES:
            raise StateRefused(
                f"session state {key!r} of {len(text)} bytes is above its limit "
                f"({_MAX_VALUE_BYTES} bytes a value, {_MAX_USER_BYTES} a user); write it to a file instead"
            )
        entries[name] = _Entry(text, None if ttl_s is None else time.monotonic() + ttl_s)
        self._changed.setdefault(user, set()).add(name)

    def delete(self, user: str, collection: str | None, key: str) -> bool:
        """Forget a value; say whether there was one."""
        name = full_key(collection, key)
        is_known = self._users.get(user, {}).pop(name, None) is not None
        if is_known:
            self._changed.setdefault(user, set()).add(name)
        return is_known

    def take_changes(self, user: str) -> "dict[str, Kept | None]":
        """Return, once, what has changed of a user's state, by `full_key`; None for what is gone."""
        entries = self._users.get(user, {})
        names = self._changed.pop(user, set())
        return {name: _kept(entries[name]) if name in entries else None for name in names}

    def take_over(self, user: str, entries: "Mapping[str, Kept]") -> None:
        """Have these values, and no other, for a user."""
        now = time.monotonic()
        self._users[user] = {
            name: _Entry(kept.text, None if kept.left_s is None else now + kept.left_s)
            for name, kept in entries.items()
        }
        self._changed.pop(user, None)

    def ending_in(self, user: str, suffix: str) -> dict[str, Any]:
        """Return the user's values whose key ends in `suffix`, by `full_key`."""
        found: dict[str, Any] = {}
        for name in list(self._users.get(user, {})):
            collection, key = json.loads(name)
            if key.endswith(suffix):
                found[name] = self.get(user, collection, key)[0]
        return found

    def forget(self, user: str) -> None:
        """Drop everything of one user."""
        self._users.pop(user, None)
        self._changed.pop(user, None)


def _kept(entry: _Entry) -> "Kept":
    return Kept(entry.text, None if entry.expires_at is None else entry.expires_at - time.monotonic())
