"""A toolset: one set of tool files ready to be called, with its zygotes, homes, store and catalog.

It selects the user pool of a call. A user pool is bound to one user's home, or to none: no process that has
run author code ever has access to another user's home.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runner.errors import RunnerError
from runner.files.my_files import open_library
from runner.files.sessions import KnownSessions
from runner.homes.changes import HomeChanges
from runner.homes.full_disk import disk_full_as_call_error
from runner.homes.homes import Homes
from runner.homes.scratch import sweep
from runner.observation.metrics import Gauges
from runner.observation.observers import Observers
from runner.settings.execution import EffectiveToolSettings
from runner.settings.isolation import in_force, uids_of
from runner.settings.live import same_limits
from runner.settings.named_limits import Counted
from runner.settings.resource_limits import warn_of_memory
from runner.settings.settings import Settings
from runner.store.protocol import ArtifactStore
from runner.system.once import Once
from runner.system.worker_environment import framework_environment
from runner.toolset.call_services import CallServices
from runner.toolset.catalog import Catalog, ToolSpec, refused_jobs
from runner.toolset.grants import check_files
from runner.toolset.hidden_files import HiddenFile, hidden_files
from runner.toolset.lending import lend
from runner.toolset.load_check import LoadCheck
from runner.toolset.policies import PolicyBuilder
from runner.toolset.pool_maker import PoolMaker
from runner.toolset.programs import program_files
from runner.toolset.user_pool import NO_WORKERS, NOBODY, HomeAccess, PoolKey, UserPool
from runner.users.identity import User
from runner.users.tool_secrets import Secrets
from runner.worker.targets import tool_files
from sandbox.errors import SandboxError
from sandbox.host.launch import Launched
from sandbox.host.memory_guard import MemoryGuard
from sandbox.host.memory_shares import MemoryShares
from sandbox.host.server_memory import find_server_memory
from sandbox.host.supervisor import ForkserverSupervisor
from sandbox.probe.machine import Tier
from sandbox.readable import OF_OTHERS

if TYPE_CHECKING:
    from runner.http.loopback import Loopback

__all__ = ["Fleet", "Toolset"]

log = logging.getLogger(__name__)


class Fleet(Protocol):
    """Executor of calls on other machines, for requests that this host has admitted.

    Requests, listeners and ends of calls are those of `runner.steps`, which this room does not import.
    """

    async def call(self, request: Any, spec: ToolSpec, listener: Any) -> Any:
        """Execute a tool call, from staging to routing; return its `Completed`.

        Raises:
            CallError: It ended with an error, or could not start.
            WireError: The tool's server answered with a JSON-RPC error.
        """

    async def relay(self, request: Any, listener: Any) -> Mapping[str, Any]:
        """Answer any other request.

        Raises:
            CallError: It was not answered.
            WireError: The server answered with a JSON-RPC error.
        """

    async def faults(self) -> Mapping[str, str]:
        """Return the faulty parts, by name, each with a sentence on why calls cannot be accepted now."""

    async def end_session(self, session: str) -> None:
        """End the background work of a session, on any machine."""

    def waiting(self) -> int:
        """Return the number of calls of this host that wait for a place on another machine."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Toolset(CallServices):
    """One set of tool files ready to be called. Make one with `open`.

    Attributes:
        targets: The tool files, as given.
        homes: Where users' homes are made.
        tier: Isolation tier of every call.
        catalog: Server and tools of the files.
        load_check: Checks whether the files can be loaded now.
        memory_guard: Limits the memory of all calls together, so that the host keeps its own.
        unseen: Folders in which tools see only their own entries.
        named_files: The tool files, as found at the start.
        keep_s: How long homes are kept after this toolset, in seconds.
        secrets: Secrets in the environment of calls of some tools.
        fleet: Executes the calls on other machines, if they are not executed here.
    """

    targets: tuple[str, ...]
    homes: Homes
    forkserver: ForkserverSupervisor
    environment: Mapping[str, str]
    tier: Tier = field()
    keep_s: float = 0
    secrets: Secrets = field(default_factory=Secrets)
    changes: HomeChanges = field(default_factory=HomeChanges)
    fleet: Fleet | None = None
    catalog: Catalog = field(init=False)
    load_check: LoadCheck = field(init=False)
    memory_guard: MemoryGuard = field(init=False)
    unseen: tuple[Path, ...] = field(init=False)
    named_files: list[Path] = field(init=False)
    _pool_maker: PoolMaker = field(init=False)
    _effective: dict[str | None, EffectiveToolSettings] = field(init=False)
    _user_pools: "dict[PoolKey, asyncio.Task[UserPool]]" = field(init=False, default_factory=dict)
    _loopback: "Once[Loopback]" = field(init=False)
    _retiring: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _apart: dict[str, PoolKey] = field(init=False, default_factory=dict)
    _shares: MemoryShares = field(init=False, default_factory=MemoryShares)

    @property
    def places(self) -> Sequence[tuple[str, str]]:
        """Return the tool files; for code mode, the targets of the server whose tools the code calls."""
        own = [(file.name, str(file)) for file in self.named_files]
        return own if self.beside is None else [*own, *self.beside.places]

    def __post_init__(self) -> None:
        CallServices.__post_init__(self)
        self.forkserver.renewed = self._revive
        self._loopback = Once(self._open_loopback)
        self.memory_guard = MemoryGuard(memory=find_server_memory())
        self.unseen = (*map(Path, OF_OTHERS), self.settings.homes) if self.tier is Tier.NAMESPACE else ()
        self.named_files = tool_files(self.targets)
        self.load_check = LoadCheck(make=lambda: self._make(None, NOBODY), keep=self._keep_nobodys)
        self._effective = self._effective_of(self.settings)
        self._pool_maker = PoolMaker(
            settings=self.settings,
            policies=PolicyBuilder(
                settings=self.settings,
                targets=self.targets,
                homes=self.homes,
                environment=self.environment,
                tier=self.tier,
                lasting=self.keep_s == 0,
            ),
            forkserver=self.forkserver,
            links=lambda: self.links,
            user_pools=self._made_pools,
            keep_s=self.keep_s,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        targets: Sequence[str],
        *,
        user: User | None = None,
        keep_s: float = 0,
        program: str = "runner.worker.program",
        launched: Launched | None = None,
        store: ArtifactStore | None = None,
        secrets: Secrets | None = None,
        of_fleet: bool = False,
        beside: CallServices | None = None,
    ) -> "AsyncIterator[Toolset]":
        """Load the tool files and be ready for calls until the block ends.

        Args:
            settings: The effective settings.
            targets: Tool files, each optionally with `:NAME` of the object in it.
            user: The user whose calls are expected first; their workers are made ready at once.
            keep_s: How long homes are kept afterwards, for a session that continues in a later process.
            program: Module of the program that loads the files, in the zygotes.
            launched: A forkserver process that was started before, if there is one.
            store: Store of My Files; by default that of the settings.
            secrets: Secrets of calls; by default those of the settings.
            of_fleet: Whether calls come from other hosts, which then end sessions and record calls.
            beside: Services in this process whose files, quotas and observers these tools share.

        Raises:
            UsageError: A secret cannot be read, an allowed program does not exist, or a tool file is in a
                place that is never granted.
            LoadError: A tool file is faulty.
            ConfinementError: A layer could not be put in place.
            IsolationUnavailable: A tool file or its folder does not meet a requirement of the tier.
            CallError: Homes or the store cannot be used; `HomeError` for homes.
        """
        # Without the operator's variables: all zygotes share the forkserver, and each gets its own.
        environment = framework_environment(os.environ, ())
        await asyncio.to_thread(check_files, settings, tool_files(targets))
        settings = await asyncio.to_thread(lend, settings, tool_files(targets))
        hidden = await asyncio.to_thread(hidden_files, tool_files(targets), settings)
        if keep_s == 0:
            _warn_of_hidden(hidden)
        tier = in_force(settings, tool_files(targets))
        for tool in (None, *settings.tools):
            program_files(settings.rights(tool).programs, path=environment["PATH"])
        if secrets is None:
            secrets = await asyncio.to_thread(Secrets.read, settings.secrets)
        forkserver = await ForkserverSupervisor.start(
            program, environment=environment, lasting=keep_s == 0, launched=launched
        )
        try:
            homes = _homes(settings, tier)
            library = open_library(settings, store) if beside is None else beside.library
            if beside is not None:
                observers = beside.observers
            else:
                # Last, since only a toolset closes them. In a fleet, the host of a call records it.
                observers = Observers() if of_fleet else Observers.of(settings)
            toolset = cls(
                settings=settings,
                targets=tuple(targets),
                homes=homes,
                library=library,
                observers=observers,
                # Unreturned files are listed by the call that ends last in the home.
                changes=beside.changes if isinstance(beside, Toolset) else HomeChanges(),
                beside=beside,
                forkserver=forkserver,
                environment=environment,
                tier=tier,
                keep_s=keep_s,
                secrets=secrets,
                ends_sessions=not of_fleet,
            )
        except BaseException:
            await forkserver.close()
            raise
        async with toolset.running(lasting=keep_s == 0):
            await toolset._load(user)
            await asyncio.to_thread(toolset._sweep_after_crash)
            if keep_s == 0 and beside is None:
                warn_of_memory(settings, toolset.memory_guard.memory)
            try:
                yield toolset
            finally:
                if keep_s > 0:
                    # At the end, so that a shell shows it below the result that it explains.
                    _warn_of_hidden(hidden)

    @staticmethod
    def _effective_of(settings: Settings) -> dict[str | None, EffectiveToolSettings]:
        return {tool: EffectiveToolSettings.of(settings, tool) for tool in (None, *settings.named_tools)}

    @property
    def kind(self) -> str:
        """Return the kind of service in a word."""
        return "tools"

    def effective(self, tool: str | None = None) -> EffectiveToolSettings:
        """Return the effective settings of one tool, or of any call."""
        known = self._effective.get(tool)
        return self._worked_out(tool) if known is None else known

    def _worked_out(self, tool: str | None) -> EffectiveToolSettings:
        """Return the settings of a tool that are not cached; `runner.toml` may name it by a pattern."""
        if tool is None or not self.settings.own(tool):
            found = self._effective[None]
        else:
            found = EffectiveToolSettings.of(self.settings, tool)
        # Other names are not cached: clients can invent any number of them.
        if tool in self.catalog.tools:
            self._effective[tool] = found
        return found

    def key(
        self,
        user: User,
        spec: ToolSpec | None = None,
        *,
        access: HomeAccess | None = None,
    ) -> PoolKey:
        """Return the user pool that a call of a tool takes, or, without one, any other request.

        Args:
            user: The caller.
            spec: The tool, which may have rights of its own.
            access: Access to the user's home; by default as the tool requests it.
        """
        rights = self.effective(None if spec is None else spec.name).rights
        # A tool that may get links must be able to fetch them.
        by_url = self.settings.file_delivery == "url"
        links = spec is not None and (spec.takes_links or (by_url and spec.takes_files))
        access = access or HomeAccess.of(spec, homes_for=self.settings.homes_for)
        return PoolKey(user.segment, access, links, rights)

    def apart(self, user: User) -> PoolKey | None:
        """Return the pool in which a call has changed the server's lists for this user, if any."""
        key = self._apart.get(user.segment)
        return key if key in self._user_pools else None

    def set_apart(self, user: User, user_pool: UserPool) -> None:
        """Record that the lists of the file's server for this user have changed since it was loaded."""
        if user_pool.retiring is not None:
            # A pool of the reloaded files has replaced it.
            return
        if self._apart.get(user.segment) != user_pool.key:
            log.info(
                "file components changed",
                extra={"user": user.name, "user_pool": user_pool.key.access.value},
            )
        self._apart[user.segment] = user_pool.key

    @asynccontextmanager
    async def user_pool(
        self, user: User, key: PoolKey | Callable[[], PoolKey], counted: Sequence[Counted] = ()
    ) -> AsyncIterator[UserPool]:
        """Hold a place among all calls, the lock of the user's calls, a pool of workers and the session.

        Args:
            user: The caller.
            key: Key of the user's pool, or a function that returns it when it is the user's turn; see `key`
                and, if a call has changed the server's lists, `apart`.
            counted: The named limits that the call counts towards.

        Raises:
            CallError: `E_BUSY`: too many calls wait, or the user is being removed.
            SandboxError: No zygote could be started; the message has the reason.
            RunnerError: The home cannot be used; the message has the reason.
        """
        async with self.admission.admit(user.segment, counted):
            with self.call_locks.calling(user.segment):
                user_pool = await self._hold(user, key() if callable(key) else key)
                try:
                    async with self.upkeep.in_use(user):
                        yield user_pool
                finally:
                    user_pool.let_go()

    async def _hold(self, user: User, key: PoolKey) -> UserPool:
        """Count a call in a user pool, and make its workers ready; `user_pool` ends the count."""
        user_pool = _made(self._user_pools.get(key))
        if user_pool is None:
            with disk_full_as_call_error(user.name), self._doubting():
                user_pool = await self._user_pool(user, key)
        if user_pool.is_outdated:
            if user_pool.is_idle:
                user_pool.renew()
            else:
                user_pool = await self._renewed_beside(user, key, user_pool)
        user_pool.key = key
        user_pool.calls += 1
        if not user_pool.is_ready:
            # Counted first: the user pool must not be evicted while a call waits for its workers.
            try:
                with self._doubting():
                    await user_pool.ready()
            except BaseException:
                user_pool.let_go()
                raise
        return user_pool

    async def _renewed_beside(self, user: User, key: PoolKey, old: UserPool) -> UserPool:
        """Return a user pool made with the current settings; calls in flight end in the old one."""

        async def made() -> UserPool:
            try:
                fresh = await self._make(user, key)
            except NO_WORKERS as error:
                old.keep(error)
                return old
            except BaseException:
                await old.close()
                raise
            self._in_background(old.retire())
            return fresh

        # Shared by all waiters; a cancelled one must not cancel it for the others.
        return await asyncio.shield(self._start(key, made()))

    def prepare(self, settings: Settings) -> Callable[[], Sequence[str]]:
        """Read the secrets of new settings; return a function that applies both.

        Raises:
            UsageError: A secret cannot be read.
        """
        secrets = Secrets.read(settings.secrets)

        def take() -> list[str]:
            changed = [f"secret {name}" for name in self.secrets.changed(secrets)]
            before, self.secrets = self.settings, secrets
            self.rebound(settings)
            self._effective = self._effective_of(self.settings)
            if not same_limits(before, self.settings):
                # Each user gets new processes with the next call.
                self._pool_maker.rebound(self.settings)
                warn_of_memory(self.settings, self.memory_guard.memory)
                if self.fleet is not None:
                    changed.append("worker nodes take limits of calls from their own configuration, at start")
            self._warn_of_secrets()
            return changed

        return take

    async def reload(self) -> None:
        """Reload the tool files. Calls in flight end in the files they started with.

        Raises:
            LoadError: A tool file is faulty; the files loaded before stay in use.
            SandboxError: No zygote could be started; the files loaded before stay in use.
        """
        nobody = asyncio.create_task(self._make(None, NOBODY))
        user_pool = await asyncio.shield(nobody)
        try:
            await user_pool.pool.ready()
            catalog = self._catalog_of(user_pool)
        except BaseException:
            await user_pool.close()
            raise
        old, self._user_pools = self._user_pools, {NOBODY: nobody}
        self._apart.clear()
        self._take(catalog)
        for key, task in old.items():
            self._in_background(self._replace(key, task))

    async def _replace(self, key: PoolKey, old: "asyncio.Task[UserPool]") -> None:
        """Retire a user pool of the previous files, once a pool of the current ones holds its home."""
        await asyncio.wait({old})
        user_pool = _made(old)
        if user_pool is None:
            return
        if user_pool.user is not None:
            # The new pool first: otherwise the home would be emptied in between.
            try:
                await self._user_pool(user_pool.user, key)
            except Exception as error:  # noqa: BLE001 - whatever it is, the home stays as it is
                log.warning("user keeps previous processes", extra={"problem": str(error)})
                self._user_pools[key] = old
                return
        await user_pool.retire()

    def _warn_of_secrets(self) -> None:
        """Log the tools that are configured for a secret but do not exist, which may be a typo."""
        named = {tool for secret in self.secrets.rules.values() for tool in secret.tools}
        if unknown := sorted(named - set(self.catalog.tools)):
            log.warning("secrets without tools", extra={"tools": unknown})

    async def _load(self, user: User | None) -> None:
        """Start the pool bound to nobody, whose import may write nothing, and the first user's beside it."""
        nobody = self._start(NOBODY, self._make(None, NOBODY))
        if user is not None:
            # Concurrently: a file that takes seconds to import delays the start only once.
            key = PoolKey(user.segment, HomeAccess.WRITE)
            self._start(key, self._make(user, key))
        user_pool = await asyncio.shield(nobody)
        await user_pool.pool.ready()
        try:
            self._take(self._catalog_of(user_pool))
        except ValueError as error:
            raise SandboxError(str(error)) from error
        self._warn_of_secrets()
        if user is not None and not any(
            HomeAccess.of(tool, homes_for=self.settings.homes_for) is HomeAccess.WRITE
            for tool in (None, *self.catalog.tools.values())
        ):
            await self._drop(PoolKey(user.segment, HomeAccess.WRITE))

    def _take(self, catalog: Catalog) -> None:
        """Serve the tools of loaded files, and warn of background jobs that the settings do not allow."""
        self.catalog = catalog
        for spec in catalog.tools.values():
            # Recorded now, for calls by any later list and by rules that a reload adds.
            self.approvals.is_destructive("", spec.name, now=spec.widgets.may_destroy)
        refused = refused_jobs(self.settings, catalog.tools)
        if refused:
            # With `worker_reuse = call` no setting allows them.
            advice = "set background_jobs = true, with worker_reuse = user"
            log.warning("background jobs not allowed", extra={"tools": refused, "advice": advice})

    def _catalog_of(self, user_pool: UserPool) -> Catalog:
        return Catalog.from_hello(user_pool.pool.loaded.hello, identity=self.settings.username_parameter)

    async def _user_pool(self, user: User, key: PoolKey) -> UserPool:
        task = self._user_pools.get(key)
        if task is None and key == PoolKey(user.segment, HomeAccess.NONE) and NOBODY in self._user_pools:
            # The pool that supplied the catalog goes to the first user, and to that one only: an import
            # could have prepared a channel that all its workers share.
            task = self._user_pools[key] = self._user_pools.pop(NOBODY)
        if task is not None and task.done():
            if (user_pool := _made(task)) is not None:
                return user_pool
            # Making it has failed.
            del self._user_pools[key]
            task = None
        if task is None:
            task = self._start(key, self._make(user, key))
        # Shielded: a cancelled caller must not cancel the user pool for other waiters.
        return await asyncio.shield(task)

    @contextlib.contextmanager
    def _doubting(self) -> Iterator[None]:
        """Start the load check if the block fails to make a user's workers."""
        try:
            yield
        except SandboxError:
            self.load_check.begin()
            raise

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _revive(self) -> None:
        """Start to replace all pools that ended with a forkserver, after the load check has succeeded."""
        self._in_background(self._revived())

    async def _revived(self) -> None:
        self.load_check.begin()
        await self.load_check.done()
        for user_pool in tuple(self._made_pools()):
            # Not evicted pools. One after the other, so that waiting calls get their turn in between.
            if user_pool.pool.zygote.loss is not None:
                with contextlib.suppress(SandboxError, RunnerError):
                    await user_pool.ready()

    def _keep_nobodys(self, user_pool: UserPool) -> bool:
        """Take over a new pool bound to nobody, unless there is a usable one; return whether it was taken."""
        task = self._user_pools.get(NOBODY)
        previous = _made(task)
        if (task is not None and not task.done()) or (previous is not None and previous.pool.alive):
            return False
        if previous is not None:
            self._in_background(previous.retire())
        self._user_pools[NOBODY] = asyncio.create_task(_is(user_pool))
        return True

    async def faults(self) -> Mapping[str, str]:
        """Return the faulty parts, by name, each with a sentence on why calls cannot be accepted now."""
        found = {
            "forkserver": await self.forkserver.fault(),
            "tools": self.load_check.fault,
        }
        known = {part: fault for part, fault in found.items() if fault is not None}
        further = {} if self.fleet is None else await self.fleet.faults()
        return {**known, **self.observers.faults(), **further}

    async def gauges(self) -> Gauges:
        """Return the current state, for monitoring."""
        known = await CallServices.gauges(self)
        elsewhere = 0 if self.fleet is None else self.fleet.waiting()
        pools = [pool for pool in self._made_pools() if pool.pool.alive]
        return replace(
            known,
            running=known.running - elsewhere,
            waiting=known.waiting + elsewhere,
            workers=sum(pool.pool.zygote.at_hand for pool in pools),
            user_pools=len(pools),
            retired=dict(self.forkserver.retired),
            user_memory=await asyncio.to_thread(
                self._shares.by_owner, [(pool.key.segment, pool.pool.zygote.pid) for pool in pools]
            ),
        )

    def _start(self, key: PoolKey, made: Coroutine[None, None, UserPool]) -> "asyncio.Task[UserPool]":
        """Make a user pool for all callers that request this key."""
        task = self._user_pools[key] = asyncio.create_task(made)
        # The waiters for the user pool get the error; without waiters, nobody needs it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _make(self, user: User | None, key: PoolKey) -> UserPool:
        owner = None if key.access is HomeAccess.NONE else user
        return await self._pool_maker.make(owner, key, await self._loopback.get() if key.links else None)

    def _made_pools(self) -> Iterator[UserPool]:
        """Yield the existing user pools."""
        yield from filter(None, map(_made, self._user_pools.values()))

    async def _open_loopback(self) -> "Loopback":
        """Open the address where tools fetch files, with the first tool that needs it."""
        # Imported only here: few tools take links, and a server is slow to import.
        from runner.http.link_downloads import routes  # noqa: PLC0415
        from runner.http.loopback import Loopback  # noqa: PLC0415

        return await Loopback.open(routes(self.links.tokens, self.library, clock=self.links.clock))

    async def _drop(self, key: PoolKey) -> None:
        if self._apart.get(key.segment) == key:
            del self._apart[key.segment]
        task = self._user_pools.pop(key, None)
        if task is None:
            return
        # `wait`, not `await`: its exception or cancellation must not propagate.
        await asyncio.wait({task})
        if (user_pool := _made(task)) is not None:
            with contextlib.suppress(Exception):
                await user_pool.close()

    def _sweep_after_crash(self) -> None:
        """Clean up after processes that ended without their own cleanup."""
        sweep(self.settings.homes, self.homes.known)
        for segment, emptied in self.homes.sweep().items():
            if emptied.removed:
                log.info("home swept", extra={"user": segment, "removed": emptied.removed})

    async def _end_idle(self) -> None:
        """End the sessions of users idle for long: their zygotes end, their homes are emptied."""
        now = time.monotonic()
        for key, task in list(self._user_pools.items()):
            user_pool = None if key == NOBODY else _made(task)
            if user_pool is not None and user_pool.idle_s(now) > self.settings.session_idle_s:
                log.info("session ended", extra={"user": key.segment, "reason": "idle"})
                await self._drop(key)
                # Of a user's pools, one may have been idle for long while another is in use.
                if all(other.segment != key.segment for other in self._user_pools):
                    self.state.forget(key.segment)
                    self.changes.forget(key.segment)

    def has_jobs(self, segment: str) -> bool:
        """Return whether background work of this user continues between calls."""
        return any(
            user_pool.pool.has_jobs for user_pool in self._made_pools() if user_pool.key.segment == segment
        )

    def make_room(self) -> bool:
        """End the least recently used workers; False if all are in use. Homes stay."""
        return self._pool_maker.give_up_one()

    def share(self, sessions: KnownSessions) -> None:
        """Consider sessions of other hosts for My Files: they outlive this one.

        Args:
            sessions: The sessions.
        """
        self.library = replace(self.library, sessions=sessions)
        self.upkeep = replace(self.upkeep, library=self.library, is_alone=False)

    async def end_session(self, session: str) -> None:
        """End a session of any user: its jobs end; its files are deleted if files do not persist."""
        for user_pool in self._made_pools():
            user_pool.pool.end_jobs(session)
        if self.fleet is not None:
            await self.fleet.end_session(session)
        await self.upkeep.end(session)

    async def _end_processes(self) -> None:
        await self.load_check.close()
        await self.memory_guard.close()
        for retired in list(self._retiring):
            retired.cancel()
            await asyncio.wait({retired})
        for task in self._user_pools.values():
            task.cancel()
        # Concurrently: each may take the time that its workers need to finish.
        await asyncio.gather(*map(self._drop, list(self._user_pools)))
        await self.forkserver.close()
        await self._loopback.end(lambda loopback: loopback.close())


def _warn_of_hidden(hidden: Sequence[HiddenFile]) -> None:
    # In one line, so that the end of a shell's output has all of them.
    if hidden:
        facts = {
            "path": ", ".join(str(one.path) for one in hidden),
            "named": ", ".join(f"{one.file} line {one.line}" for one in hidden),
            "cure": " ".join(one.flag for one in hidden),
        }
        log.warning("hidden file not lent", extra=facts)


def _homes(settings: Settings, tier: Tier) -> Homes:
    return Homes.of(settings, uids_of(settings, tier))


async def _is(user_pool: UserPool) -> UserPool:
    return user_pool


def _made(task: "asyncio.Task[UserPool] | None") -> UserPool | None:
    """Return the user pool that a task has made; None if it has not ended, or has failed."""
    is_made = task is not None and task.done() and not task.cancelled() and task.exception() is None
    return task.result() if task is not None and is_made else None
