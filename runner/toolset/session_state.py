"""Session state of the tools: values of `ctx.set_state` between calls, kept by the host in memory.

Entries belong to one user. A worker can name any key, so the host adds the user, never the worker.
No step takes longer with more entries, and memory is limited by the bounds below.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.worker.wire import VISIBILITY_SUFFIX, full_key

__all__ = ["SessionState", "StateItem", "StateRefused"]

_MAX_VALUE_BYTES = 1024 * 1024
_MAX_USER_BYTES = 16 * 1024 * 1024
# Python's overhead for an entry besides its text and its key.
_ENTRY_BYTES = 256
# These go to the worker with each request of the user.
_MAX_RULES_BYTES = 256 * 1024
_MAX_TTL_S = 1e12
_SHOWN_CHARS = 100


class StateRefused(ValueError):
    """A value is larger than session state may be; files belong in the home."""


class StateItem(NamedTuple):
    """One value, for transfer to another machine.

    Attributes:
        text: The value as JSON.
        left_s: Remaining lifetime in seconds; None for that of the session.
    """

    text: str
    left_s: float | None


@dataclass(slots=True)
class _Entry:
    text: str
    expires_at: float | None


@dataclass(slots=True)
class _OfUser:
    """The state of one user.

    Attributes:
        entries: The values by `full_key`.
        size: Their size in bytes.
        rules: Sizes of the visibility rules, which are sent with each request, by key.
        changed: Keys put or deleted since `take_changes`, each with whether it existed then.
    """

    entries: dict[str, _Entry] = field(default_factory=dict)
    size: int = 0
    rules: dict[str, int] = field(default_factory=dict)
    changed: dict[str, bool] = field(default_factory=dict)

    def place(self, name: str, entry: _Entry) -> None:
        """Set a value."""
        self.remove(name)
        self.entries[name] = entry
        self.size += _size(name, entry.text)
        if _goes_along(name):
            self.rules[name] = _size(name, entry.text)

    def remove(self, name: str) -> bool:
        """Remove a value; return whether it existed."""
        entry = self.entries.pop(name, None)
        if entry is None:
            return False
        self.size -= _size(name, entry.text)
        self.rules.pop(name, None)
        return True


@dataclass(slots=True)
class SessionState:
    """All session state of one server."""

    _users: dict[str, _OfUser] = field(default_factory=dict)

    def get(self, user: str, collection: str | None, key: str) -> tuple[Any, float | None]:
        """Return the value and its remaining seconds; None where there is none."""
        return self._get(user, full_key(collection, key))

    def _get(self, user: str, name: str) -> tuple[Any, float | None]:
        mine = self._users.get(user)
        entry = None if mine is None else mine.entries.get(name)
        if mine is None or entry is None:
            return None, None
        if entry.expires_at is not None and entry.expires_at <= time.monotonic():
            mine.remove(name)
            return None, None
        left = None if entry.expires_at is None else entry.expires_at - time.monotonic()
        return json.loads(entry.text), left

    def put(
        self, user: str, collection: str | None, key: str, value: Mapping[str, Any], ttl_s: object
    ) -> None:
        """Keep a value.

        Args:
            user: The user.
            collection: Namespace of the key.
            key: Its key.
            value: The value.
            ttl_s: Lifetime in seconds, a finite number; None for that of the session.

        Raises:
            StateRefused: It is above 1 MiB, the user's state above 16 MiB, the rules for the visibility of
                components above 256 KiB, or the time is not a number.
        """
        expires_at = _expiry(key, ttl_s)
        text = _text(key, value)
        name = full_key(collection, key)
        mine = self._users.setdefault(user, _OfUser())
        before = mine.entries.get(name)
        used = mine.size - (0 if before is None else _size(name, before.text))
        if len(text) > _MAX_VALUE_BYTES or used + _size(name, text) > _MAX_USER_BYTES:
            raise StateRefused(
                f"session state {_shown(key)} of {len(text)} bytes is above its limit ({_MAX_VALUE_BYTES} "
                f"bytes a value, {_MAX_USER_BYTES} a user with {_ENTRY_BYTES} for each key); write it to a "
                "file instead"
            )
        others = sum(mine.rules.values()) - mine.rules.get(name, 0)
        if _goes_along(name) and others + _size(name, text) > _MAX_RULES_BYTES:
            raise StateRefused(
                f"session state {_shown(key)} of {len(text)} bytes is above the limit of {_MAX_RULES_BYTES} "
                "bytes for what says which components are visible; use fewer rules, or another key"
            )
        mine.changed.setdefault(name, before is not None)
        mine.place(name, _Entry(text, expires_at))

    def delete(self, user: str, collection: str | None, key: str) -> bool:
        """Delete a value; return whether it existed."""
        name, mine = full_key(collection, key), self._users.get(user)
        if mine is None or not mine.remove(name):
            return False
        if not mine.changed.setdefault(name, True):
            # Put and deleted since `take_changes`; the number of such keys would be unbounded.
            del mine.changed[name]
        return True

    def take_changes(self, user: str) -> "dict[str, StateItem | None]":
        """Return the changes of a user's state since the last call, by `full_key`; None for deleted keys."""
        mine = self._users.get(user)
        if mine is None:
            return {}
        names, mine.changed = mine.changed, {}
        return {name: _item_of(mine.entries[name]) if name in mine.entries else None for name in names}

    def take_over(self, user: str, entries: "Mapping[str, StateItem]") -> None:
        """Replace all values of a user."""
        now = time.monotonic()
        mine = self._users[user] = _OfUser()
        for name, entry in entries.items():
            mine.place(name, _Entry(entry.text, None if entry.left_s is None else now + entry.left_s))

    def visibility(self, user: str) -> dict[str, Any]:
        """Return the user's rules for the visibility of components, by `full_key`."""
        mine = self._users.get(user)
        return {} if mine is None else {name: self._get(user, name)[0] for name in list(mine.rules)}

    def forget(self, user: str) -> None:
        """Drop everything of one user."""
        self._users.pop(user, None)


def _size(name: str, text: str) -> int:
    return len(name) + len(text) + _ENTRY_BYTES


def _goes_along(name: str) -> bool:
    return name.endswith(f'{VISIBILITY_SUFFIX}"]')


def _expiry(key: str, ttl_s: object) -> float | None:
    if ttl_s is None:
        return None
    if isinstance(ttl_s, int | float) and abs(ttl_s) <= _MAX_TTL_S:
        return time.monotonic() + ttl_s
    raise StateRefused(
        f"session state {_shown(key)} needs a time in seconds of at most {_MAX_TTL_S:g}, or none"
    )


def _text(key: str, value: object) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        raise StateRefused(f"session state {_shown(key)} is nested too deeply") from None


def _shown(key: str) -> str:
    return repr(key[:_SHOWN_CHARS])


def _item_of(entry: _Entry) -> "StateItem":
    return StateItem(entry.text, None if entry.expires_at is None else entry.expires_at - time.monotonic())
