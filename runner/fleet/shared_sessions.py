"""Sessions whose files end with them, as all hosts of a fleet know them: in Redis, not in a folder.

A user without a session of the protocol may speak to any host, and each of them would take the user for
idle who speaks to another. So when a session was last used, and who uses it, is noted where all see it. A
use is a lease, which its host renews; those of a host that has died end by themselves, and any other host
then ends the session.

As `runner.files.sessions.Sessions`, its methods block, and are called in threads.

Source: requirements S1-12 and S1-13; `docs/decisions/0044-fleet-over-redis.md`.
"""

import hashlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from runner.errors import CallError, Code
from runner.files.sessions import Session
from runner.fleet.connection import REDIS_FAILURES, problem_of
from runner.fleet.lua import SESSION_CLAIM, SESSION_END, SESSION_LEAVE, SESSION_USE
from runner.fleet.redis_names import RedisKeys

__all__ = ["LEASE_S", "SharedSessions"]

log = logging.getLogger(__name__)

LEASE_S = 10.0
"""How long a use holds whose host says nothing any more, in seconds."""

_END_S = 30.0
_AGAIN_S = 0.1
_WAIT_S = 40.0


@dataclass(frozen=True, slots=True)
class _Names:
    """Redis keys of one session."""

    note: str
    known: str
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
        names = self.names
        try:
            held = SESSION_END.run_now(
                self.sessions.redis, [names.known, names.end], names.note, self.whose, int(self._is_over)
            )
        except REDIS_FAILURES as error:
            # It runs out by itself. The session is ended once more then, and has no files by that time.
            log.warning("session end not recorded", extra={"fault": problem_of(error)})
            return
        if not held:
            log.warning("session end exceeded lease", extra={"session": names.note})


@dataclass(slots=True, kw_only=True, eq=False)
class SharedSessions:
    """The sessions of a fleet that were used and have not ended. A `runner.files.sessions.KnownSessions`.

    Attributes:
        redis: Where they are noted. It blocks.
        keys: What is called how there.
    """

    redis: Redis
    keys: RedisKeys
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
                SESSION_LEAVE.run_now(self.redis, [names.known, names.uses], names.note, use)
            except REDIS_FAILURES as error:
                # Its lease ends, and its idle time is counted from its beginning.
                log.warning("session release not recorded", extra={"fault": problem_of(error)})

    def claim(self, session: Session, *, idle_s: float = 0) -> _Right | None:
        """Return the right to end a session, which keeps all hosts from using it; None: it may not end.

        Args:
            session: The session.
            idle_s: For how long it must have been unused, in seconds.

        Raises:
            CallError: `E_STORE`: nobody says.
        """
        names, whose = self._names(session), secrets.token_hex(8)
        try:
            claimed = SESSION_CLAIM.run_now(
                self.redis,
                [names.known, names.uses, names.end],
                names.note, whose, int(_END_S * 1000), int(idle_s * 1000),
            )  # fmt: skip
        except REDIS_FAILURES as error:
            raise _unusable(error) from error
        return _Right(self, names, whose) if claimed else None

    def known(self, *, idle_s: float = 0) -> Iterator[Session]:
        """Yield the sessions that have been unused for so long and have not ended, the longest unused first.

        Raises:
            CallError: `E_STORE`: nobody says.
        """
        try:
            seconds: Any = self.redis.time()[0]
            notes: Any = self.redis.zrangebyscore(
                self.keys.sessions, "-inf", (seconds - idle_s + 1) * 1000 if idle_s else "+inf"
            )
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
            SESSION_USE.run_now(
                self.redis, [names.known, names.uses, names.end], names.note, use, int(LEASE_S * 1000)
            )
            with self._lock:
                is_over = use not in self._uses
            if is_over:
                self.redis.zrem(names.uses, use)

    def _begin(self, names: _Names, use: str) -> None:
        ends = time.monotonic() + _WAIT_S
        while not SESSION_USE.run_now(
            self.redis, [names.known, names.uses, names.end], names.note, use, int(LEASE_S * 1000)
        ):
            if time.monotonic() > ends:
                raise TimeoutError("the session has been ending for too long")
            time.sleep(_AGAIN_S)

    def _names(self, session: Session) -> _Names:
        note = json.dumps([session.user, session.name])
        digest = hashlib.sha256(note.encode()).hexdigest()[:32]
        return _Names(note, self.keys.sessions, self.keys.session_uses(digest), self.keys.session_end(digest))


def _unusable(error: Exception) -> CallError:
    return CallError(
        Code.E_STORE,
        f"sessions cannot be noted in the Redis of the fleet: {problem_of(error)}",
        retryable=True,
    )
