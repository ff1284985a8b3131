"""The pool of a user: workers bound to one user's home, or to none, with the resources of the pool."""

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from runner.errors import RunnerError
from runner.files.download_links import DownloadLinks
from runner.homes.homes import HomeLease
from runner.settings.rights import Rights
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User
from sandbox.errors import SandboxError
from sandbox.host.pool import Pool

__all__ = ["NOBODY", "NO_WORKERS", "HomeAccess", "PoolKey", "UserPool", "Workers"]

log = logging.getLogger(__name__)

NO_WORKERS = (SandboxError, RunnerError, OSError)
"""Exceptions raised when no workers are available."""

# Seconds until a call retries to get new workers after a failure.
_AGAIN_S = 30.0


class HomeAccess(enum.Enum):
    """Access of a call to its user's home."""

    NONE = "none"
    READ = "read"
    WRITE = "write"

    @classmethod
    def of(cls, tool: ToolSpec | None, *, homes_for: Literal["declared", "all"] = "declared") -> "HomeAccess":
        """Return the access that a tool's parameters request; `username` gives a tool a home (S1-57).

        Args:
            tool: The tool; None for other requests.
            homes_for: With `all`, every request has a home, so that one process can serve a whole file.
        """
        if homes_for == "all":
            return cls.WRITE
        if tool is None:
            return cls.NONE
        if tool.takes_username:
            return cls.WRITE
        return cls.READ if tool.takes_files else cls.NONE


class PoolKey(NamedTuple):
    """Key of a pool: no two pools share a zygote.

    Attributes:
        segment: Segment of its user.
        access: Access to that user's home.
        links: Whether its tools can fetch download links.
        rights: Rights of its tools, if they differ from the general ones.
    """

    segment: str
    access: HomeAccess
    links: bool = False
    rights: Rights | None = None


NOBODY = PoolKey("", HomeAccess.NONE)
"""Key of the user pool bound to no home, which lists the tools at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """A pool, with the resources that are released with it.

    Attributes:
        pool: The workers.
        scratch: The zygote's warm-up folder.
        stack: Removes that folder.
        edition: Number of the settings with which they were made.
    """

    pool: Pool
    scratch: Path
    stack: contextlib.ExitStack
    edition: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class UserPool:
    """A pool of workers, with the home they are bound to. Shared by the calls of one user.

    The home outlives the workers: after a zygote has ended or was evicted, the next call gets another.

    Attributes:
        workers: The workers.
        begin: Starts other workers.
        edition: Returns the number of the settings with which others would be made.
        home: The lease of the home, or None if the pool is bound to nobody.
        user: The user of the home, or None.
        links: Makes the links that its workers can fetch, or None if they can fetch none.
        key: Its key, as the holder defines it.
        stack: Releases the home.
    """

    workers: Workers
    begin: Callable[[], Awaitable[Workers]]
    home: HomeLease | None
    edition: Callable[[], int] = lambda: 0
    user: User | None = None
    links: DownloadLinks | None = None
    key: PoolKey = NOBODY
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    calls: int = 0
    retiring: "asyncio.Event | None" = None
    used_at: float = field(default_factory=time.monotonic)
    _beginning: "asyncio.Task[None] | None" = None
    _removals: "set[asyncio.Task[None]]" = field(default_factory=set)
    _closed: bool = False
    _not_before: float = 0.0

    @property
    def pool(self) -> Pool:
        """Return the workers."""
        return self.workers.pool

    @property
    def is_ready(self) -> bool:
        """True if calls can use its current workers."""
        return self.pool.alive and (self._beginning is None or self._beginning.done())

    @property
    def is_idle(self) -> bool:
        """True if no call uses it, or is about to."""
        return self.calls == 0

    def idle_s(self, now: float) -> float:
        """Return the time since a call last used it, in seconds of the monotonic clock."""
        return 0.0 if self.calls else now - self.used_at

    def let_go(self) -> None:
        """Record that a call no longer uses it."""
        self.calls -= 1
        self.used_at = time.monotonic()
        if self.retiring is None:
            self.pool.refill_later()
        elif not self.calls:
            self.retiring.set()

    @property
    def is_outdated(self) -> bool:
        """True if its next call should get workers made with other settings, and they are due.

        Background work between calls is not ended for that.
        """
        return (
            self.workers.edition != self.edition()
            and self.is_ready
            and not self.pool.has_jobs
            and time.monotonic() >= self._not_before
        )

    def renew(self) -> None:
        """Start to make other workers. No call may be in flight; further calls wait for them."""
        self._beginning = asyncio.create_task(self._begin_other())

    def keep(self, error: Exception) -> None:
        """Keep the existing workers for a while, since no others can be started."""
        # Lowered limits are applied by each call anyway. Raised ones have to wait for new workers.
        self._not_before = time.monotonic() + _AGAIN_S
        log.warning("workers keep previous limits", extra={"problem": str(error)})

    async def _begin_other(self) -> None:
        """Replace the existing workers; keep them if no others can be started."""
        try:
            other = await self.begin()
        except NO_WORKERS as error:
            self.keep(error)
            return
        self.rest()
        self.workers = other
        if self._closed:
            self.rest()

    async def ready(self) -> None:
        """Provide workers, also if the last ones have ended.

        Raises:
            SandboxError: No zygote could be started; the message has the reason.
            RunnerError: There are no descriptors for one.
        """
        if self.is_ready:
            return
        if self._beginning is None or self._beginning.done():
            self._beginning = asyncio.create_task(self._begin_anew())
            # The waiters get the error; without waiters, nobody needs it.
            self._beginning.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: a cancelled caller must not cancel the workers for other waiters.
        await asyncio.shield(self._beginning)

    async def _begin_anew(self) -> None:
        self.rest()
        self.workers = await self.begin()
        if self._closed:
            self.rest()

    def rest(self, *, at_once: bool = False) -> None:
        """End the workers until the next call. No call may be in flight.

        Args:
            at_once: Whether to kill them immediately, since their descriptors or memory are needed now.
        """
        if at_once:
            self.pool.close()
        removal = asyncio.create_task(_ended(self.pool.finish(), self.workers.stack.pop_all()))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def retire(self) -> None:
        """Close as soon as no call uses it any more."""
        self.retiring = asyncio.Event()
        try:
            if self.calls:
                await self.retiring.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """End the workers, release the home, and remove the scratch folder."""
        self._closed = True
        if self._beginning is not None and not self._beginning.done():
            self._beginning.cancel()
            await asyncio.wait({self._beginning})
        self.rest()
        await asyncio.wait(self._removals)
        await asyncio.to_thread(self.stack.close)


async def _ended(finishing: Awaitable[None], stack: contextlib.ExitStack) -> None:
    """Wait until workers have finished, then remove their folder, which may take a while."""
    try:
        await finishing
    finally:
        await asyncio.to_thread(stack.close)
