"""Sessions whose files are deleted when they end, shared by all hosts of a fleet in Redis.

A user without an MCP session may send requests to any host, and would seem idle to the others. So Redis
holds the last use of each session, and its holders: any number of uses, or one right to end it. Each holder
has a lease. A host renews the leases of its uses; those of a dead host expire, and another host then ends
the session.

The methods block and are called in threads, like those of `runner.files.sessions.Sessions`.

Source: requirements S1-12 and S1-13; `docs/decisions/0044-fleet-over-redis.md`.
"""

import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.client import Pipeline

from runner.errors import CallError, Code
from runner.files.sessions import Session
from runner.fleet.connection import REDIS_FAILURES, problem_of, redis_key

__all__ = ["END_S", "LEASE_S", "SharedSessions"]

log = logging.getLogger(__name__)

LEASE_S = 10.0
"""Seconds until the lease of a dead host expires."""

END_S = 30.0
"""Seconds until the right to end a session expires."""

_AGAIN_S = 0.1
_WAIT_S = 40.0
_KNOWN = redis_key("sessions")
# Prefix of the name of a right to end a session; the names of uses lack it.
_ENDING = "end."


@dataclass(slots=True)
class _Right:
    """The right to end one session. A `runner.files.sessions.Right`."""

    redis: Redis
    note: str
    name: str
    _is_over: bool = False

    def forget(self) -> None:
        """Forget the session: it has ended."""
        self._is_over = True

    def release(self) -> None:
        """Release the right."""
        try:
            if not self.redis.zrem(_holders(self.note), self.name):
                # The lease has expired, and the session may be in use again.
                log.warning("session end exceeded lease", extra={"session": self.note})
            elif self._is_over:
                # A use that has begun since is recorded again when it ends.
                self.redis.zrem(_KNOWN, self.note)
        except REDIS_FAILURES as error:
            # The lease expires. The session is then ended again, but has no files left.
            log.warning("session end not recorded", extra={"fault": problem_of(error)})


@dataclass(slots=True, kw_only=True, eq=False)
class SharedSessions:
    """The sessions of a fleet that were used and have not ended. A `runner.files.sessions.KnownSessions`.

    Attributes:
        redis: Blocking client of the Redis that records them.
    """

    redis: Redis
    # Notes of the sessions in use here, and whether only to read, by the name of the use.
    _uses: dict[str, tuple[str, bool]] = field(default_factory=dict)

    @contextmanager
    def using(self, session: Session, *, to_read: bool = False) -> Iterator[None]:
        """Use a session: no host can end it, and its idle time restarts. Blocks while it is being ended.

        Args:
            session: The session.
            to_read: Use the session only if it exists; continue if the use cannot be recorded.

        Raises:
            CallError: `E_STORE`: the use cannot be recorded.
        """
        note, use = session.note, secrets.token_hex(8)
        try:
            ends = time.monotonic() + _WAIT_S
            while self._hold(note, use, to_read=to_read):
                self.redis.zrem(_holders(note), use)
                if time.monotonic() > ends:
                    raise TimeoutError("the session has been ending for too long")
                time.sleep(_AGAIN_S)
        except REDIS_FAILURES as error:
            if not to_read:
                raise _unusable(error) from error
            yield
            return
        self._uses[use] = note, to_read
        try:
            yield
        finally:
            del self._uses[use]
            try:
                self.redis.zadd(_KNOWN, {note: _now_ms(self.redis)}, xx=to_read)
                self.redis.zrem(_holders(note), use)
            except REDIS_FAILURES as error:
                # The lease expires, and idle time counts from its last renewal.
                log.warning("session release not recorded", extra={"fault": problem_of(error)})

    def claim(self, session: Session, *, idle_s: float = 0) -> _Right | None:
        """Return the right to end a session, which blocks its use on all hosts; None if it may not end.

        Args:
            session: The session.
            idle_s: Minimum idle time, in seconds.

        Raises:
            CallError: `E_STORE`: Redis does not answer.
        """
        note = session.note
        right, holders = _Right(self.redis, note, f"{_ENDING}{secrets.token_hex(8)}"), _holders(note)

        def take(pipe: Pipeline) -> bool:
            now_ms, used = _now_ms(pipe), pipe.zscore(_KNOWN, note)
            is_idle = used is not None and now_ms - float(str(used)) >= idle_s * 1000
            is_free = is_idle and not pipe.zcount(holders, now_ms, "+inf")
            pipe.multi()
            if is_free:
                pipe.zadd(holders, {right.name: now_ms + END_S * 1000})
                pipe.pexpire(holders, int(END_S * 1000))
            return is_free

        # redis-py's annotations omit the value that it returns.
        transaction: Any = self.redis.transaction
        try:
            return right if transaction(take, holders, value_from_callable=True) else None
        except REDIS_FAILURES as error:
            # The right may have been granted, and only the reply lost.
            right.release()
            raise _unusable(error) from error

    def known(self, *, idle_s: float = 0) -> Iterator[Session]:
        """Yield the sessions that have not ended and have been idle for `idle_s` seconds, longest idle first.

        Raises:
            CallError: `E_STORE`: Redis does not answer.
        """
        try:
            until = _now_ms(self.redis) + 1000 - idle_s * 1000 if idle_s else "+inf"
            notes: Any = self.redis.zrangebyscore(_KNOWN, "-inf", until)
        except REDIS_FAILURES as error:
            raise _unusable(error) from error
        for note in notes:
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                user, name = json.loads(note)
                yield Session(user=str(user), name=str(name))

    def renew(self) -> None:
        """Renew the leases of this host's uses; they expire `LEASE_S` after the last renewal."""
        for use, (note, to_read) in dict(self._uses).items():
            # Recorded again, in case Redis has lost it; no host can end a session in use.
            self._hold(note, use, to_read=to_read)
            if use not in self._uses:
                self.redis.zrem(_holders(note), use)

    def _hold(self, note: str, use: str, *, to_read: bool) -> bool:
        """Record a use and its lease; return whether a host is ending the session."""
        now_ms, holders = _now_ms(self.redis), _holders(note)
        with self.redis.pipeline() as whole:
            whole.zadd(_KNOWN, {note: now_ms}, xx=to_read)
            whole.zremrangebyscore(holders, "-inf", now_ms)
            whole.zadd(holders, {use: now_ms + LEASE_S * 1000})
            # The longest lease, so that the key outlives every holder.
            whole.pexpire(holders, int(END_S * 1000))
            whole.zrange(holders, 0, -1)
            *_, names = whole.execute()
        return any(name.startswith(_ENDING.encode()) for name in names)


def _holders(note: str) -> str:
    """Return the key of a session's holders: a sorted set, scored by the time at which each lease expires."""
    return redis_key("holders", hashlib.sha256(note.encode()).hexdigest()[:32])


def _now_ms(redis: Redis) -> int:
    """Return the time of Redis in milliseconds, as the clocks of hosts may differ."""
    seconds, micros = redis.time()
    return int(seconds * 1000 + micros // 1000)


def _unusable(error: Exception) -> CallError:
    return CallError(
        Code.E_STORE,
        f"sessions cannot be noted in the Redis of the fleet: {problem_of(error)}",
        retryable=True,
    )
