"""Maintenance of My Files in a server: ending sessions, uploading pending files, sweeps.

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
"""Seconds for uploading pending files during shutdown."""

_LOCAL_S = 300.0
_SHARED_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Maintenance of the files of all users.

    Attributes:
        library: The files.
        idle_s: Idle time after which a session ends, in seconds.
        ends: Whether sessions end here at all; not on a worker node, since its hosts end them.
        is_alone: Whether sessions end with this server; else other hosts share them, and end idle ones.
    """

    library: Library
    idle_s: float
    ends: bool = True
    is_alone: bool = True
    _spoken: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def running(self, *, sweeps: bool) -> AsyncIterator[None]:
        """End idle sessions, also those left by a crash, and upload pending files, until the block ends.

        Args:
            sweeps: Whether to remove expired content from the store. A single call has no time for it: a
                server, or `runner doctor --repair`, does it.
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
        """Upload pending files before a server ends: other hosts find them only in the bucket."""
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
        """Keep a user's session from ending meanwhile; it ends with this server."""
        if self.library.persist:
            return _NOTHING
        if user.session is not None:
            self._spoken.add(user.session)
        return self.library.of(user.name, user.session).in_use()

    async def end(self, session: str) -> None:
        """End a session of any user, and delete its files if files do not persist."""
        # A user who only uploaded files in it is not known here.
        self._spoken.discard(session)
        if not self.ends:
            return
        with _logging_what_stays():
            await self.library.end_sessions_named(session)

    async def end_idle(self) -> None:
        """End the sessions that have been idle for `idle_s`, of any server."""
        if not self.ends:
            return
        with _logging_what_stays():
            await self.library.end_idle_sessions(self.idle_s)

    async def end_all(self) -> None:
        """End the sessions used by this server, since their connections have ended."""
        if not self.is_alone:
            return
        for session in tuple(self._spoken):
            await self.end(session)


@contextlib.contextmanager
def _logging_what_stays() -> Iterator[None]:
    """Log an unavailable store instead of raising: the ends are recorded, and files are removed later."""
    try:
        yield
    except CallError as error:
        log.warning("session files not removed", extra={"reason": error.message})


def pauses(*, shared: bool, chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield the seconds to wait before each sweep of a store.

    A sweep of a store in S3 lists its whole content, on every host that shares it, so it is rare there.
    A delay is harmless: expired content is not found any more, even before the sweep.

    Args:
        shared: Whether other hosts sweep this store too.
        chance: Returns a number from 0 to 1, so that hosts started together do not sweep together.
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
