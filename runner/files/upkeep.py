"""Maintenance of My Files in a server: ends sessions, sends pending files, sweeps.

Source: requirements S1-12 and S1-13; architecture, decisions "Session" and "Retention".
"""

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from runner.errors import CallError
from runner.files.my_files import Library
from runner.store.protocol import ArtifactStore
from runner.store.spool import SpoolingStore
from runner.users.identity import User

__all__ = ["LAST_SEND_S", "Upkeep", "pauses"]

log = logging.getLogger(__name__)

_NOTHING = contextlib.nullcontext()

LAST_SEND_S = 10.0
"""Seconds for which a server sends waiting files during shutdown."""

_LOCAL_S = 300.0
_SHARED_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Looks after the files of all users.

    Attributes:
        library: The files.
        idle_s: How long a session is unused before it ends, in seconds.
        ends: Whether sessions end here at all; on a worker node they do not, as their hosts end them.
        is_alone: Whether sessions end with this server; else other hosts have them, too, and end the idle.
    """

    library: Library
    idle_s: float
    ends: bool = True
    is_alone: bool = True
    _spoken: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def running(self, *, sweeps: bool) -> AsyncIterator[None]:
        """End what a crash left idle, and send on what waits for a bucket, until the block ends.

        Args:
            sweeps: Whether to remove from the store what is over. A single call has no time for it: a server,
                or `runner doctor --repair`, does it.
        """
        await self.end_idle()
        store, tasks = self.library.store, list["asyncio.Task[None]"]()
        if isinstance(store, SpoolingStore):
            tasks.append(asyncio.create_task(store.run()))
        if sweeps:
            tasks.append(asyncio.create_task(_sweep_now_and_then(store)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def send_the_last(self) -> None:
        """Send on what waits for a bucket before a server ends: others find it only once it is there."""
        store = self.library.store
        if not isinstance(store, SpoolingStore):
            return
        try:
            left = await store.send_all(LAST_SEND_S)
        except OSError as error:
            log.warning("spool cannot be used", extra={"reason": error.strerror})
            return
        if left:
            # The next server with this state folder uploads them.
            log.warning(
                "spooled files not uploaded", extra={"files": left, "folder": str(store.spool.folder)}
            )

    def in_use(self, user: User) -> AbstractAsyncContextManager[None]:
        """Keep the session in which a user speaks from ending meanwhile; it ends with this server."""
        if self.library.persist:
            return _NOTHING
        if user.session is not None:
            self._spoken.add(user.session)
        return self.library.of(user.name, user.session).in_use()

    async def end(self, session: str) -> None:
        """End a session of any user: its files are deleted, where files do not persist."""
        # A user who only uploaded files in it is not known here.
        self._spoken.discard(session)
        if not self.ends:
            return
        with _logging_what_stays():
            await self.library.end_sessions_named(session)

    async def end_idle(self) -> None:
        """End the sessions that have been idle for so long, whichever server they were of."""
        if not self.ends:
            return
        with _logging_what_stays():
            await self.library.end_idle_sessions(self.idle_s)

    async def end_all(self) -> None:
        """End the sessions in which somebody spoke: the connections are gone, and with them the sessions."""
        if not self.is_alone:
            return
        for session in tuple(self._spoken):
            await self.end(session)


@contextlib.contextmanager
def _logging_what_stays() -> Iterator[None]:
    """Log where the store is out of reach, and raise nothing: the ends are noted, the files go later."""
    try:
        yield
    except CallError as error:
        log.warning("session files not removed", extra={"reason": error.message})


def pauses(*, shared: bool, chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield the seconds to wait before each sweep of a store.

    A sweep of a store in S3 lists all that is in it, for every host that shares it, so it is rare there.
    Nothing hangs on it: what has ended is not found any more, swept or not.

    Args:
        shared: Whether other hosts sweep the same store.
        chance: From 0 to 1, so that hosts which started together do not sweep together.
    """
    if not shared:
        yield 0.0
        yield from itertools.repeat(_LOCAL_S)
    yield _LOCAL_S * chance()
    while True:
        yield _SHARED_S * (0.5 + chance())


async def _sweep_now_and_then(store: ArtifactStore) -> None:
    for pause_s in pauses(shared=isinstance(store, SpoolingStore)):
        await asyncio.sleep(pause_s)
        try:
            await store.sweep()
        except CallError as error:
            log.warning("store not swept", extra={"reason": error.message})
