"""Sessions whose files end with them, shared by all hosts of a fleet: in Redis instead of a folder.

A user without an MCP session may send requests to any host, and the other hosts would take that user for
idle. So the last use of a session and its current users are recorded in Redis. A use is a lease, which its
host renews; the leases of a dead host expire, and any other host then ends the session.

As `runner.files.sessions.Sessions`, its methods block, and are called in threads.

Source: requirements S1-12 and S1-13; `docs/decisions/0044-fleet-over-redis.md`.
"""

import hashlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.client import Pipeline

from runner.errors import CallError, Code
from runner.files.sessions import Session
from runner.fleet.connection import REDIS_FAILURES, problem_of, redis_key

__all__ = ["LEASE_S", "SharedSessions"]

log = logging.getLogger(__name__)

LEASE_S = 10.0
"""Seconds until the lease of a dead host expires."""

_END_S = 30.0
_AGAIN_S = 0.1
_WAIT_S = 40.0
_KNOWN = redis_key("sessions")


@dataclass(frozen=True, slots=True)
class _Names:
    """Redis keys of one session."""

    note: str
    uses: str
    end: str


@dataclass(slots=True)
class _Right:
    """The right to end one session. A `runner.files.sessions.Claim`."""

    sessions: "SharedSessions"
    names: _Names
    whose: str
    _is_over: bool = False

    def forget(self) -> None:
        """Forget the session: it has ended."""
        self._is_over = True

    def release(self) -> None:
        """Give the right back."""
        names, whose = self.names, self.whose.encode()

        def give_back(pipe: Pipeline) -> bool:
            # Where it has run out, the session may be in use again.
            if pipe.get(names.end) != whose:
                return False
            pipe.multi()
            if self._is_over:
                pipe.zrem(_KNOWN, names.note)
            pipe.delete(names.end)
            return True

        try:
            if not self.sessions._transaction(give_back, names.end):
                log.warning("session end exceeded lease", extra={"session": names.note})
        except REDIS_FAILURES as error:
            # It runs out by itself. The session is ended once more then, and has no files by that time.
            log.warning("session end not recorded", extra={"fault": problem_of(error)})


@dataclass(slots=True, kw_only=True, eq=False)
class SharedSessions:
    """The sessions of a fleet that were used and have not ended. A `runner.files.sessions.KnownSessions`.

    Attributes:
        redis: Where they are noted. It blocks.
    """

    redis: Redis
    _uses: dict[str, _Names] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def using(self, session: Session, *, to_read: bool = False) -> Iterator[None]:
        """Use a session: no host ends it meanwhile, and its idle time restarts. Blocks while it ends.

        Args:
            session: The session.
            to_read: Go on where it cannot be noted.

        Raises:
            CallError: `E_STORE`: it cannot be noted.
        """
        names, use = self._names(session), secrets.token_hex(8)
        try:
            self._begin(names, use)
        except REDIS_FAILURES as error:
            if not to_read:
                raise _unusable(error) from error
            yield
            return
        with self._lock:
            self._uses[use] = names
        try:
            yield
        finally:
            with self._lock:
                del self._uses[use]
            try:
                self.redis.zadd(_KNOWN, {names.note: _now_ms(self.redis)})
                self.redis.zrem(names.uses, use)
            except REDIS_FAILURES as error:
                # Its lease ends, and its idle time is counted from its beginning.
                log.warning("session release not recorded", extra={"fault": problem_of(error)})

    def claim(self, session: Session, *, idle_s: float = 0) -> _Right | None:
        """Return the right to end a session, which keeps all hosts from using it; None: it may not end.

        Args:
            session: The session.
            idle_s: For how long it must have been unused, in seconds.

        Raises:
            CallError: `E_STORE`: Redis does not answer.
        """
        names, whose = self._names(session), secrets.token_hex(8)
        right = _Right(self, names, whose)

        def take(pipe: Pipeline) -> bool:
            now_ms, used = _now_ms(pipe), pipe.zscore(_KNOWN, names.note)
            is_idle = used is not None and now_ms - float(str(used)) >= idle_s * 1000
            # Uses of a host that has died end with their leases.
            is_free = is_idle and not pipe.exists(names.end) and not pipe.zcount(names.uses, now_ms, "+inf")
            pipe.multi()
            if is_free:
                pipe.set(names.end, whose, px=int(_END_S * 1000))
            return is_free

        try:
            # Who begins a use changes `uses`.
            return right if self._transaction(take, names.end, names.uses) else None
        except REDIS_FAILURES as error:
            # The right may have been taken, and only the reply is lost.
            right.release()
            raise _unusable(error) from error

    def known(self, *, idle_s: float = 0) -> Iterator[Session]:
        """Yield the sessions that have been unused for so long and have not ended, the longest unused first.

        Raises:
            CallError: `E_STORE`: Redis does not answer.
        """
        try:
            until = _now_ms(self.redis) + 1000 - idle_s * 1000 if idle_s else "+inf"
            notes: Any = self.redis.zrangebyscore(_KNOWN, "-inf", until)
        except REDIS_FAILURES as error:
            raise _unusable(error) from error
        for note in notes:
            user, name = json.loads(note)
            yield Session(user=user, name=name)

    def renew(self) -> None:
        """Keep the uses of this host; they end `LEASE_S` after it was done for the last time."""
        with self._lock:
            uses = dict(self._uses)
        for use, names in uses.items():
            # Again, since Redis may have lost it; nobody can end it meanwhile.
            self._note(names, use)
            with self._lock:
                is_over = use not in self._uses
            if is_over:
                self.redis.zrem(names.uses, use)

    def _transaction(self, step: Callable[[Pipeline], bool], *watched: str) -> bool:
        # Its types leave out the value.
        transaction: Any = self.redis.transaction
        return bool(transaction(step, *watched, value_from_callable=True))

    def _begin(self, names: _Names, use: str) -> None:
        ends = time.monotonic() + _WAIT_S
        while self._note(names, use):
            self.redis.zrem(names.uses, use)
            if time.monotonic() > ends:
                raise TimeoutError("the session has been ending for too long")
            time.sleep(_AGAIN_S)

    def _note(self, names: _Names, use: str) -> bool:
        """Note a use; return whether a host is ending the session."""
        now_ms = _now_ms(self.redis)
        with self.redis.pipeline() as whole:
            whole.zadd(_KNOWN, {names.note: now_ms})
            whole.zadd(names.uses, {use: now_ms + LEASE_S * 1000})
            whole.pexpire(names.uses, int(LEASE_S * 1000))
            whole.exists(names.end)
            *_, is_ending = whole.execute()
        return bool(is_ending)

    def _names(self, session: Session) -> _Names:
        note = json.dumps([session.user, session.name])
        digest = hashlib.sha256(note.encode()).hexdigest()[:32]
        return _Names(note, redis_key("session-uses", digest), redis_key("session-end", digest))


def _now_ms(redis: Redis) -> int:
    """Return the time of Redis, as the clocks of hosts may differ."""
    seconds, micros = redis.time()
    return int(seconds * 1000 + micros // 1000)


def _unusable(error: Exception) -> CallError:
    return CallError(
        Code.E_STORE,
        f"sessions cannot be noted in the Redis of the fleet: {problem_of(error)}",
        retryable=True,
    )
