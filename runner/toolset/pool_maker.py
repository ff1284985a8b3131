"""Creation of user pools, and their end if descriptors run short.

A pool needs descriptors of the host, and a user may have several pools. If too few are left for another, the
least recently used pool is evicted: its processes end; the home and the session remain. While all are in
use, a call waits for one of them.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from runner.contract.error_messages import out_of_descriptors
from runner.files.download_links import DownloadLinks
from runner.homes.homes import HomeLease
from runner.http.loopback import Loopback
from runner.settings.execution import ExecutionSettings
from runner.system.now_and_then import NowAndThen
from runner.system.threads import run_in_thread
from runner.toolset.policies import PolicyBuilder
from runner.toolset.programs import with_rights
from runner.toolset.user_pool import HomeAccess, PoolKey, UserPool, Workers
from runner.users.identity import User
from sandbox.host import descriptors
from sandbox.host.pool import IdleWorkers, Pool, ZygoteSource
from sandbox.host.usage import has_memory_to_spare

__all__ = ["PoolMaker"]

log = logging.getLogger(__name__)

# Descriptors of a pool: two sockets and a pipe to its zygote, the lock of its folder, a gate with its
# listener; and three for the home of its user, if that has none yet.
_OF_POOL = 9
_OF_WORKER = 3
# Reserve for calls, open files and connections: an eighth of the descriptors, at most this number.
_MOST_KEPT = 512
_KEPT_FREE = 8
# Most idle workers after a burst of calls: a fork takes milliseconds, and each worker holds memory.
_MOST_IDLE = 8
_WAIT_S = 30.0
_LOOK_S = 0.02
_RETRY_AFTER_S = 5
_SHORT = {
    "descriptors": "descriptors run short: workers of idle users were ended; raise the limit of open files",
    "memory": "memory runs short: workers of idle users were ended; give this server more, or fewer users",
}


@dataclass(slots=True, kw_only=True, eq=False)
class PoolMaker:
    """Maker of the user pools of a toolset.

    Attributes:
        settings: The effective settings.
        policies: Builds the policies of their processes.
        forkserver: Starts zygotes.
        links: Makes download links.
        user_pools: All existing user pools.
        keep_s: How long homes are kept afterwards, in seconds.
    """

    settings: ExecutionSettings
    policies: PolicyBuilder
    forkserver: ZygoteSource
    links: Callable[[], DownloadLinks]
    user_pools: Callable[[], Iterable[UserPool]]
    keep_s: float = 0
    # Descriptors promised to pools that are being made.
    _promised: int = field(init=False, default=0)
    _evictions: NowAndThen = field(init=False, default_factory=NowAndThen)
    _edition: int = field(init=False, default=0)

    def rebound(self, settings: ExecutionSettings) -> None:
        """Make workers by other settings from now on; existing ones are outdated."""
        self.settings, self.policies = settings, replace(self.policies, settings=settings)
        self._edition += 1

    async def make(self, user: User | None, key: PoolKey, loopback: Loopback | None) -> UserPool:
        """Return a new user pool with its workers.

        Args:
            user: The user whose home it gets, or None.
            key: Key of the pool.
            loopback: Server from which its tools fetch files, or None.

        Raises:
            SandboxError: No zygote could be started; the message has the reason.
            RunnerError: The home cannot be used, or there are no descriptors; the message has the reason.
        """
        stack = contextlib.ExitStack()
        home = None
        try:
            with await self._room():
                owner = await run_in_thread(stack.enter_context, self.policies.uid(key.segment))
                if user is not None:
                    lease = self.policies.homes.lease(user.name, keep_s=self.keep_s)
                    home = await run_in_thread(stack.enter_context, lease)
                begin = partial(self._begin, user, key, home, owner, loopback)
                workers = await begin()
        except BaseException:
            await run_in_thread(stack.close)
            raise
        links = None if loopback is None else replace(self.links(), base=loopback.url)
        return UserPool(
            workers=workers,
            begin=partial(self._begin_anew, begin),
            edition=lambda: self._edition,
            home=home,
            user=user,
            links=links,
            stack=stack,
        )

    def give_up_one(self, *, for_what: str = "descriptors") -> bool:
        """End the least recently used workers; False if all are in use.

        Args:
            for_what: The scarce resource.
        """
        idle = [user_pool for user_pool in self.user_pools() if user_pool.is_idle and user_pool.pool.alive]
        if not idle:
            return False
        # Background work between calls counts as use.
        min(idle, key=lambda user_pool: (user_pool.pool.has_jobs, user_pool.used_at)).rest(at_once=True)
        users = self._evictions.due(now=time.monotonic())
        if users:
            log.warning(_SHORT[for_what], extra={"users": users, "limit": descriptors.limit()})
        return True

    async def _begin_anew(self, begin: Callable[[], Awaitable[Workers]]) -> Workers:
        with await self._room():
            return await begin()

    async def _begin(
        self,
        user: User | None,
        key: PoolKey,
        home: HomeLease | None,
        owner: int | None,
        loopback: Loopback | None,
    ) -> Workers:
        """Start the workers of a user pool."""
        stack, edition = contextlib.ExitStack(), self._edition
        access = key.access
        try:
            scratch = await run_in_thread(stack.enter_context, self.policies.scratch(owner))
            # In a thread: scanning the tool file's folder for readable files takes a while.
            policy = await asyncio.to_thread(self.policies.policy, user, access, home, scratch)
            policy = replace(with_rights(policy, key.rights or self.settings.rights(), os.environ), uid=owner)
            if loopback is not None:
                policy = replace(policy, reach=(loopback.address,))
            pool = await Pool.start(
                self.forkserver,
                policy,
                self.policies.config(user, access, home, scratch),
                home_fd=home.fd if home is not None and access is HomeAccess.WRITE else None,
                load_timeout_s=self.settings.load_timeout_s,
                idle_workers=IdleWorkers(least=1, most=_MOST_IDLE),
                reuse=self.settings.reuse if self.keep_s == 0 else None,
                forks=self.settings.worker_start == "fork",
            )
        except BaseException:
            await run_in_thread(stack.close)
            raise
        return Workers(pool=pool, scratch=scratch, stack=stack, edition=edition)

    async def _room(self) -> contextlib.AbstractContextManager[None]:
        """Return the promise of descriptors for one more pool, once enough are available.

        Raises:
            CallError: `E_BUSY`; there are too few, and none become available.
        """
        cost = _OF_POOL + _OF_WORKER
        limit = descriptors.limit()
        most = min(limit // _KEPT_FREE, _MOST_KEPT)
        deadline = time.monotonic() + _WAIT_S
        if not await asyncio.to_thread(has_memory_to_spare):
            # Memory bounds the number of users with workers; a user who returns gets new processes.
            self.give_up_one(for_what="memory")
        while descriptors.left() - self._promised < most + cost:
            if self.give_up_one():
                # Its descriptors are closed at once, except a lock, which a thread closes.
                continue
            if time.monotonic() > deadline:
                raise out_of_descriptors(_RETRY_AFTER_S, limit=limit)
            await asyncio.sleep(_LOOK_S)
        return self._promise(cost)

    @contextlib.contextmanager
    def _promise(self, cost: int) -> Iterator[None]:
        self._promised += cost
        try:
            yield
        finally:
            self._promised -= cost
