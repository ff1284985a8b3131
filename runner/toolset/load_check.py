"""Check that the tool files load: runs after a failure, and repeats until it succeeds.

A failure to start workers for one user says nothing about other users. So a pool without a user is made,
like the one that supplied the catalog; readiness checks use the result of the last attempt.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from runner.errors import RunnerError
from runner.toolset.user_pool import UserPool
from sandbox.errors import SandboxError

__all__ = ["LoadCheck"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


@dataclass(slots=True, kw_only=True, eq=False)
class LoadCheck:
    """Load check of the tool files, without a user.

    Attributes:
        make: Makes a pool bound to nobody.
        keep: Takes over a working pool, or returns that it has no use for it.
        fault: Why the files could not be loaded last time, or None if they could.
    """

    make: Callable[[], Awaitable[UserPool]]
    keep: Callable[[UserPool], bool]
    fault: str | None = field(init=False, default=None)
    _checking: "asyncio.Task[None] | None" = field(init=False, default=None)

    def begin(self) -> None:
        """Start a check, unless one is running."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())

    async def done(self) -> None:
        """Wait until a running check has succeeded."""
        if self._checking is not None:
            await asyncio.wait({self._checking})

    async def close(self) -> None:
        """Cancel a running check, and wait until it has ended."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

    async def _check(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not await self._succeeds():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _succeeds(self) -> bool:
        try:
            user_pool = await self.make()
        except (SandboxError, RunnerError, OSError) as error:
            return self._failed(error)
        try:
            await user_pool.pool.ready()
            held = self.keep(user_pool)
        except SandboxError as error:
            await user_pool.close()
            return self._failed(error)
        except BaseException:
            await user_pool.close()
            raise
        if not held:
            await user_pool.close()
        self.fault = None
        return True

    def _failed(self, error: Exception) -> bool:
        log.error("tool files not loadable", extra={"reason": str(error)})
        self.fault = str(error)
        return False
