"""Session state of tools in a fleet, shared by all nodes that have served a user.

A node keeps the state of its users in memory, like a host without a fleet. Before each call it reads changes
by other nodes, and after each call it writes its own. All calls of a user run on one node at a time, so no
other node changes the state meanwhile.

Times come from the clock of Redis.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from runner.fleet.connection import REDIS_FAILURES, problem_of, redis_key
from runner.toolset.session_state import SessionState, StateItem
from sandbox import strict_json

__all__ = ["SharedState"]

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class SharedState:
    """Keeps the session state of users in Redis.

    Attributes:
        redis: Client of the Redis that keeps it.
        state: The node's state in memory.
        stay_s: How long Redis keeps it after the last call, in seconds.
    """

    redis: Redis
    state: SessionState
    stay_s: float
    _versions: dict[str, bytes] = field(default_factory=dict)

    async def fetch(self, user: str) -> None:
        """Load the state of a user as the last call left it, on any node."""
        key = redis_key("state", user)
        try:
            async with self.redis.pipeline(transaction=False) as both:
                both.hget(key, "")
                # A user who only reads is as active as one who writes.
                both.pexpire(key, int(self.stay_s * 1000))
                version: Any = (await both.execute())[0]
            if (version or b"") == self._versions.setdefault(user, b""):
                return
            entries: Any = await self.redis.hgetall(key)
            seconds, micros = await self.redis.time()
        except REDIS_FAILURES as error:
            log.warning("session state taken from node", extra={"user": user, "fault": problem_of(error)})
            return
        version = entries.pop(b"", b"")
        self.state.take_over(user, _read(entries, now=seconds + micros / 1e6))
        self._versions[user] = version

    async def store(self, user: str) -> None:
        """Write the changes that a call made to its user's state."""
        changes = self.state.take_changes(user)
        if not changes:
            return
        key = redis_key("state", user)
        try:
            seconds, micros = await self.redis.time()
            now = seconds + micros / 1e6
            async with self.redis.pipeline(transaction=True) as whole:
                for name, stored in changes.items():
                    if stored is None:
                        whole.hdel(key, name)
                    else:
                        ends = "" if stored.left_s is None else repr(now + stored.left_s)
                        whole.hset(key, name, f"{ends}\n{stored.text}")
                whole.hincrby(key, "", 1)
                whole.pexpire(key, int(self.stay_s * 1000))
                replies = await whole.execute()
        except REDIS_FAILURES as error:
            log.warning("session state not shared", extra={"user": user, "fault": problem_of(error)})
            return
        self._versions[user] = str(replies[-2]).encode()


def _read(entries: Mapping[bytes, bytes], *, now: float) -> Mapping[str, StateItem]:
    """Return the values in Redis, without malformed and expired ones."""
    found: dict[str, StateItem] = {}
    for name, text in entries.items():
        ends, _, value = text.decode(errors="replace").partition("\n")
        try:
            left_s = float(ends) - now if ends else None
            known: Any = strict_json.loads(name.decode())
            strict_json.loads(value)
        except ValueError:
            continue
        if isinstance(known, list) and len(known) == 2 and (left_s is None or left_s > 0):
            found[name.decode()] = StateItem(value, left_s)
    return found
