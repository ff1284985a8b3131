"""A toolset: one set of tool files ready to be called, with its zygotes, homes, store and catalog.

It decides which user pool a call takes. A user pool is bound to one user's home, or to none: no process that
has run author code ever holds a right to another user's home.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from runner.store.measuring import measured
from runner.store.protocol import ArtifactStore
from runner.system.once import Once
from runner.system.worker_environment import framework_environment
from runner.toolset.background import warn_of_refused_jobs
from runner.toolset.call_services import CallCounts, CallServices
from runner.toolset.catalog import Catalog, ToolSpec
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
from sandbox.layers.mounts import EMPTY
from sandbox.probe.machine import Tier

if TYPE_CHECKING:
    from runner.http.loopback import Loopback

__all__ = ["Toolset"]

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Toolset(CallServices):
    """One set of tool files ready to be called. Make one with `open`.

    Attributes:
        targets: The tool files, as given.
        homes: Where users' homes are made.
        tier: Isolation tier of every call.
        catalog: What the files offer.
        load_check: Whether they can be loaded now.
        memory_guard: Sees to it that all calls together leave the host its memory.
        unseen: Folders that are empty for tools but for what is theirs.
        named_files: The tool files, as found at the start.
        keep_s: How long homes are kept after this toolset, in seconds.
        secrets: What calls of some tools find in their environment.
        further_faults: Says why calls cannot be taken where they are executed elsewhere.
        waiting_elsewhere: Says how many of the calls that this host has let in wait for a place there.
        session_ended: Hears there of a session that has ended.
    """

    targets: tuple[str, ...]
    homes: Homes
    forkserver: ForkserverSupervisor
    environment: Mapping[str, str]
    tier: Tier = field()
    keep_s: float = 0
    secrets: Secrets = field(default_factory=Secrets)
    changes: HomeChanges = field(default_factory=HomeChanges)
    further_faults: Callable[[], Awaitable[Mapping[str, str]]] | None = None
    waiting_elsewhere: Callable[[], int] | None = None
    session_ended: Callable[[str], Awaitable[None]] | None = None
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
        """Return the tool files, and beside another server its parts: code serves the tools of that one."""
        own = [(file.name, str(file)) for file in self.named_files]
        return own if self.beside is None else [*own, *self.beside.places]

    def __post_init__(self) -> None:
        CallServices.__post_init__(self)
        self.forkserver.renewed = self._revive
        self._loopback = Once(self._open_loopback)
        self.memory_guard = MemoryGuard(memory=find_server_memory())
        self.unseen = (*map(Path, EMPTY), self.settings.homes) if self.tier is Tier.NAMESPACE else ()
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
            targets: Tool files, each perhaps with `:NAME` of the object in it.
            user: The user whose calls are expected first; their workers are made ready at once.
            keep_s: How long homes are kept afterwards, for a session that goes on in a later process.
            program: Module of the program that loads the files, in the zygotes.
            launched: A forkserver's process that was started before, if there is one.
            store: Where My Files are, if not where the settings say.
            secrets: What calls get, if not what the settings say.
            of_fleet: Whether calls come from other hosts: they end sessions, and hear of calls.
            beside: Services in this process whose files, quotas and recorders these tools share.

        Raises:
            UsageError: A secret cannot be had, a program that may be run is not there, or a tool file lies
                where nothing is granted.
            LoadError: A tool file is at fault.
            ConfinementError: A layer could not be put in place.
            IsolationUnavailable: The tier needs something of a tool file or its folder that is not so.
            CallError: Homes or the store cannot be used; `HomeError` of the first.
        """
        # What tools may see of ours, each zygote is told by itself: all of them share the forkserver.
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
            toolset = cls(
                settings=settings,
                targets=tuple(targets),
                homes=_homes(settings, tier),
                library=open_library(settings, store) if beside is None else beside.library,
                # The host that a call came to tells of it.
                counts=CallCounts.of(settings, Observers() if of_fleet else Observers.of(settings))
                if beside is None
                else beside.counts,
                # Files that nobody named are listed by the call that ends last in the home.
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
                    # A shell shows it below the result that it explains.
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
        """Return the settings of a tool that has not been asked for; the file may name it by a pattern."""
        if tool is None or not self.settings.own(tool):
            found = self._effective[None]
        else:
            found = EffectiveToolSettings.of(self.settings, tool)
        # Names that no file has are as many as clients think of.
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
            user: Who calls.
            spec: The tool, which may have rights of its own.
            access: What may be done with the home of the user, where it is not what the tool asks for.
        """
        rights = self.effective(None if spec is None else spec.name).rights
        # A tool that may be given links must be able to fetch them.
        by_url = self.settings.file_delivery == "url"
        links = spec is not None and (spec.takes_links or (by_url and spec.takes_files))
        access = access or HomeAccess.of(spec, homes_for=self.settings.homes_for)
        return PoolKey(user.segment, access, links, rights)

    def apart(self, user: User) -> PoolKey | None:
        """Return the pool in which a call has changed what the file's server offers this user, if one has."""
        key = self._apart.get(user.segment)
        return key if key in self._user_pools else None

    def set_apart(self, user: User, user_pool: UserPool) -> None:
        """Note that what the file's server offers this user is no longer what it was when it was loaded."""
        if user_pool.retiring is not None:
            # There is another by now, of the files as they are.
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
            user: Who calls.
            key: Which pool of the user's, or what returns it once it is the user's turn: `key` says which a
                call takes, `apart` where what it offers has changed.
            counted: The limits by name that the call counts for.

        Raises:
            CallError: `E_BUSY`: too many calls wait, or the user is being removed.
            SandboxError: No zygote could be had; the message says why.
            RunnerError: The home cannot be used; the message says why.
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
        """Count a call in a pool of workers, which then has some; see `user_pool`, which lets it go."""
        found = self._user_pools.get(key)
        if found is not None and found.done() and not found.cancelled() and found.exception() is None:
            user_pool = found.result()
        else:
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
            # Counted before: a call that waits for workers must not lose the user pool meanwhile.
            try:
                with self._doubting():
                    await user_pool.ready()
            except BaseException:
                user_pool.let_go()
                raise
        return user_pool

    async def _renewed_beside(self, user: User, key: PoolKey, old: UserPool) -> UserPool:
        """Return a user pool made by the settings in force now; calls under way end in the old one."""

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

        # For all present waiters; one that is cancelled does not take it from the others.
        return await asyncio.shield(self._start(key, made()))

    def prepare(self, settings: Settings) -> Callable[[], Sequence[str]]:
        """Read the secrets of settings that are in force from now on; return what takes both over.

        Raises:
            UsageError: A secret cannot be had.
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
                if self.waiting_elsewhere is not None:
                    changed.append("worker nodes take limits of calls from their own configuration, at start")
            self._warn_of_secrets()
            return changed

        return take

    async def reload(self) -> None:
        """Reload the tool files. Calls in flight end in the files they started with.

        Raises:
            LoadError: A tool file is at fault; what was loaded before stays in use.
            SandboxError: No zygote could be had; the same.
        """
        nobody = asyncio.create_task(self._make(None, NOBODY))
        user_pool = await asyncio.shield(nobody)
        try:
            await user_pool.pool.ready()
            catalog = self._catalog_of(user_pool)
        except BaseException:
            await user_pool.close()
            raise
        old, self._user_pools, self.catalog = self._user_pools, {NOBODY: nobody}, catalog
        self._apart.clear()
        warn_of_refused_jobs(self.settings, catalog.tools)
        for key, task in old.items():
            self._in_background(self._replace(key, task))

    async def _replace(self, key: PoolKey, old: "asyncio.Task[UserPool]") -> None:
        """Let a user pool of the files before go, once one of the files now holds its home."""
        await asyncio.wait({old})
        if old.cancelled() or old.exception() is not None:
            return
        user_pool = old.result()
        if user_pool.user is not None:
            # Held before it is let go, or it would be emptied in between.
            try:
                await self._user_pool(user_pool.user, key)
            except Exception as error:  # noqa: BLE001 - whatever it is, the home stays as it is
                log.warning("user keeps previous processes", extra={"problem": str(error)})
                self._user_pools[key] = old
                return
        await user_pool.retire()

    def _warn_of_secrets(self) -> None:
        """Log which tools that are to have a secret are in no file, which may be a slip."""
        named = {tool for secret in self.secrets.rules.values() for tool in secret.tools}
        if unknown := sorted(named - set(self.catalog.tools)):
            log.warning("secrets without tools", extra={"tools": unknown})

    async def _load(self, user: User | None) -> None:
        """Start the pool bound to nobody, whose import may write nothing, and the first user's beside it."""
        nobody = self._start(NOBODY, self._make(None, NOBODY))
        if user is not None:
            # Beside it, not after it: a file that takes seconds to import is imported once, in wall time.
            key = PoolKey(user.segment, HomeAccess.WRITE)
            self._start(key, self._make(user, key))
        user_pool = await asyncio.shield(nobody)
        await user_pool.pool.ready()
        try:
            self.catalog = self._catalog_of(user_pool)
        except ValueError as error:
            raise SandboxError(str(error)) from error
        warn_of_refused_jobs(self.settings, self.catalog.tools)
        self._warn_of_secrets()
        if user is not None and not any(
            HomeAccess.of(tool, homes_for=self.settings.homes_for) is HomeAccess.WRITE
            for tool in (None, *self.catalog.tools.values())
        ):
            await self._drop(PoolKey(user.segment, HomeAccess.WRITE))

    def _catalog_of(self, user_pool: UserPool) -> Catalog:
        return Catalog.from_hello(user_pool.pool.loaded.hello, identity=self.settings.username_parameter)

    async def _user_pool(self, user: User, key: PoolKey) -> UserPool:
        task = self._user_pools.get(key)
        if task is None and key == PoolKey(user.segment, HomeAccess.NONE) and NOBODY in self._user_pools:
            # The pool that gave the catalog belongs to the first user who comes, and to no second one:
            # an import could have prepared a channel that all its workers share.
            task = self._user_pools[key] = self._user_pools.pop(NOBODY)
        if task is not None and task.done():
            if not task.cancelled() and task.exception() is None:
                return task.result()
            # Nothing came of it.
            del self._user_pools[key]
            task = None
        if task is None:
            task = self._start(key, self._make(user, key))
        # Shielded: a caller that goes away must not take the user pool from the others who wait for it.
        return await asyncio.shield(task)

    @contextlib.contextmanager
    def _doubting(self) -> Iterator[None]:
        """Find out whether any user's workers can be made, after one user's could not."""
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
        """Begin to start all that ended with a forkserver: first what shows that calls work."""
        self._in_background(self._revived())

    async def _revived(self) -> None:
        self.load_check.begin()
        await self.load_check.done()
        for user_pool in tuple(self._made_pools()):
            # Not who gave its workers up. One after the other, so that calls that wait come between.
            if user_pool.pool.zygote.loss is not None:
                with contextlib.suppress(SandboxError, RunnerError):
                    await user_pool.ready()

    def _keep_nobodys(self, user_pool: UserPool) -> bool:
        """Take a new pool bound to nobody, where there is none that can be used."""
        task = self._user_pools.get(NOBODY)
        if task is not None and (not task.done() or _usable(task)):
            return False
        if task is not None and not task.cancelled() and task.exception() is None:
            self._in_background(task.result().retire())
        self._user_pools[NOBODY] = asyncio.create_task(_is(user_pool))
        return True

    async def faults(self) -> Mapping[str, str]:
        """Return the parts at fault, by name, each with a sentence on why calls cannot be taken now."""
        found = {
            "forkserver": await self.forkserver.fault(),
            "tools": self.load_check.fault,
        }
        known = {part: fault for part, fault in found.items() if fault is not None}
        further = {} if self.further_faults is None else await self.further_faults()
        return {**known, **self.observers.faults(), **further}

    async def gauges(self) -> Gauges:
        """Return the current state, for monitoring."""
        running, waiting = self.admission.counts
        elsewhere = 0 if self.waiting_elsewhere is None else self.waiting_elsewhere()
        pools = [pool for pool in self._made_pools() if pool.pool.alive]
        return Gauges(
            running=running - elsewhere,
            waiting=waiting + elsewhere,
            workers=sum(pool.pool.zygote.at_hand for pool in pools),
            user_pools=len(pools),
            retired=dict(self.forkserver.retired),
            user_memory=await asyncio.to_thread(
                self._shares.by_owner, [(pool.key.segment, pool.pool.zygote.pid) for pool in pools]
            ),
            faults=tuple(await self.faults()),
            audit_pending=self.observers.audit.pending if self.observers.audit is not None else 0,
            **asdict(await measured(self.library.store)),
            events_lost=self.events.lost,
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
        """Yield the user pools that there are."""
        for task in self._user_pools.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                yield task.result()

    async def _open_loopback(self) -> "Loopback":
        """Open the address where tools fetch files, with the first tool that needs it."""
        # Only here: few tools take links, and a server takes a while to import.
        from runner.http.link_downloads import routes  # noqa: PLC0415
        from runner.http.loopback import Loopback  # noqa: PLC0415

        return await Loopback.open(routes(self.links.tokens, self.library, clock=self.links.clock))

    async def _drop(self, key: PoolKey) -> None:
        if self._apart.get(key.segment) == key:
            del self._apart[key.segment]
        task = self._user_pools.pop(key, None)
        if task is None:
            return
        # Waited for, not awaited: its own end, cancellation included, is not ours.
        await asyncio.wait({task})
        if not task.cancelled() and task.exception() is None:
            with contextlib.suppress(Exception):
                await task.result().close()

    def _sweep_after_crash(self) -> None:
        """Tidy up after processes that ended without their own clean-up."""
        sweep(self.settings.homes, self.homes.known)
        for segment, emptied in self.homes.sweep().items():
            if emptied.removed:
                log.info("home swept", extra={"user": segment, "removed": emptied.removed})

    async def _end_idle(self) -> None:
        """End the sessions of users idle for long: their zygotes end, their homes are emptied."""
        now = time.monotonic()
        for key, task in list(self._user_pools.items()):
            if key == NOBODY or not task.done() or task.cancelled() or task.exception():
                continue
            if task.result().idle_s(now) > self.settings.session_idle_s:
                log.info("session ended", extra={"user": key.segment, "reason": "idle"})
                await self._drop(key)
                # One of a user's pools may be idle for long while the other is used.
                if all(other.segment != key.segment for other in self._user_pools):
                    self.state.forget(key.segment)
                    self.changes.forget(key.segment)

    def has_jobs(self, segment: str) -> bool:
        """Return whether something that a call of this user began goes on between calls."""
        return any(
            user_pool.pool.has_jobs for user_pool in self._made_pools() if user_pool.key.segment == segment
        )

    def make_room(self) -> bool:
        """End the workers that nobody has used for longest; False if all are in use. Homes stay."""
        return self._pool_maker.give_up_one()

    def share(self, sessions: KnownSessions) -> None:
        """Consider sessions of other hosts for My Files: they outlive this one.

        Args:
            sessions: Them.
        """
        self.library = replace(self.library, sessions=sessions)
        self.upkeep = replace(self.upkeep, library=self.library, is_alone=False)

    async def end_session(self, session: str) -> None:
        """End a session of any user: its jobs end; its files go, where files do not persist."""
        for user_pool in self._made_pools():
            user_pool.pool.end_jobs(session)
        if self.session_ended is not None:
            await self.session_ended(session)
        await self.upkeep.end(session)

    async def _end_processes(self) -> None:
        await self.load_check.close()
        await self.memory_guard.close()
        for retired in list(self._retiring):
            retired.cancel()
            await asyncio.wait({retired})
        for task in self._user_pools.values():
            task.cancel()
        # At once: each may take the time that its workers need to finish.
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


def _usable(task: "asyncio.Task[UserPool]") -> bool:
    return not task.cancelled() and task.exception() is None and task.result().pool.alive
