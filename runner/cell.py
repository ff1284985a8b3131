"""A cell: one set of tool files ready to be called, with its zygotes, homes, store and catalog.

It decides which pool of workers a call runs in. A pool is bound to one user's home, or to none: no
process that has run author code ever holds a right to another user's home.
"""

import asyncio
import contextlib
import enum
import logging
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runner.admission import Admission
from runner.catalog import Catalog, ToolSpec
from runner.environment import (
    FOLDERS,
    call_environment,
    framework_environment,
    homeless_environment,
    load_environment,
)
from runner.homes import HomeLease, Homes
from runner.identity import User
from runner.settings import Settings
from runner.state import SessionState
from runner.store.local import LocalStore
from runner.targets import split_target
from sandbox.errors import SandboxError
from sandbox.forkserver import Forkserver
from sandbox.policy import Policy
from sandbox.pool import Pool
from sandbox.readable import default_read

__all__ = ["Access", "Cell", "Seat"]

log = logging.getLogger(__name__)

GUARD_ONLY = ("landlock", "seccomp")
"""What the tier `guard` does without, for a laptop whose kernel lacks it. It protects nobody."""

_SWEEP_S = 30.0


class Access(enum.Enum):
    """What a call may do with its user's home."""

    NONE = "none"
    READ = "read"
    WRITE = "write"

    @classmethod
    def of(cls, tool: ToolSpec | None) -> "Access":
        """Return what a tool's parameters ask for; `username` is what gives a tool a home (S1-57)."""
        if tool is None:
            return cls.NONE
        if tool.takes_username:
            return cls.WRITE
        return cls.READ if tool.takes_files else cls.NONE


_NOBODY = ("", Access.NONE)


@dataclass(slots=True, kw_only=True, eq=False)
class Seat:
    """A pool of workers, with the home they are bound to. Shared by the calls of one user.

    Attributes:
        pool: The workers.
        home: The lease of the home, or None where the pool is bound to nobody.
        scratch: The zygote's warm-up folder.
    """

    pool: Pool
    home: HomeLease | None
    scratch: Path
    calls: int = 0
    used_at: float = field(default_factory=time.monotonic)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    async def close(self) -> None:
        """End the workers, let go of the home, and remove the scratch folder."""
        self.pool.close()
        await asyncio.to_thread(self._stack.close)
        await asyncio.to_thread(shutil.rmtree, self.scratch, ignore_errors=True)


@dataclass(slots=True, kw_only=True, eq=False)
class Cell:
    """One set of tool files ready to be called. Make one with `open`.

    Attributes:
        settings: The effective settings.
        targets: The tool files, as given.
        homes: Where users' homes are made.
        store: My Files of every user.
        state: Session state of the tools.
        admission: Who may start a call.
        catalog: What the files offer.
        keep_s: How long homes are kept after this cell, in seconds.
    """

    settings: Settings
    targets: tuple[str, ...]
    homes: Homes
    store: LocalStore
    forkserver: Forkserver
    environment: Mapping[str, str]
    keep_s: float = 0
    state: SessionState = field(default_factory=SessionState)
    admission: Admission = field(init=False)
    catalog: Catalog = field(init=False)
    _seats: "dict[tuple[str, Access], asyncio.Task[Seat]]" = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.admission = Admission(
            max_calls=self.settings.max_calls,
            max_calls_per_user=self.settings.max_calls_per_user,
            max_queue=self.settings.max_queue,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, targets: Sequence[str], *, user: User | None = None, keep_s: float = 0
    ) -> "AsyncIterator[Cell]":
        """Load the tool files and be ready for calls until the block ends.

        Args:
            settings: The effective settings.
            targets: Tool files, each perhaps with `:NAME` of the object in it.
            user: The user whose calls are expected first; their workers are made ready at once.
            keep_s: How long homes are kept afterwards, for a session that goes on in a later process.

        Raises:
            LoadError: A tool file is at fault.
            ConfinementError: A layer could not be put in place.
        """
        environment = framework_environment(os.environ, settings.allow_env)
        forkserver = await Forkserver.start("runner.program", environment=environment)
        cell = cls(
            settings=settings,
            targets=tuple(targets),
            homes=Homes(settings.homes, settings.state_dir),
            store=LocalStore(settings.store_path),
            forkserver=forkserver,
            environment=environment,
            keep_s=keep_s,
        )
        sweeper: asyncio.Task[None] | None = None
        try:
            await cell._load(user)
            await asyncio.to_thread(cell._sweep_after_crash)
            sweeper = asyncio.create_task(cell._sweep())
            yield cell
        finally:
            if sweeper is not None:
                sweeper.cancel()
            await cell._close()

    @asynccontextmanager
    async def seat(self, user: User, access: Access) -> AsyncIterator[Seat]:
        """Hold a pool whose workers may do `access` with the home of `user`.

        Raises:
            SandboxError: No zygote could be had; the message says why.
            RunnerError: The home cannot be used; the message says why.
        """
        seat = await self._seat(user, access)
        seat.calls += 1
        try:
            yield seat
        finally:
            seat.calls -= 1
            seat.used_at = time.monotonic()
            seat.pool.refill()

    async def _load(self, user: User | None) -> None:
        """Start the pool bound to nobody, whose import may write nothing, and the first user's beside it."""
        nobody = self._start(_NOBODY, None)
        if user is not None:
            # Beside it, not after it: a file that takes seconds to import is imported once, in wall time.
            self._start((user.segment, Access.WRITE), user)
        seat = await asyncio.shield(nobody)
        await seat.pool.ready()
        try:
            self.catalog = Catalog.from_hello(seat.pool.loaded.hello)
        except ValueError as error:
            raise SandboxError(str(error)) from error
        if user is not None and not any(tool.takes_username for tool in self.catalog.tools.values()):
            await self._drop((user.segment, Access.WRITE))

    async def _seat(self, user: User, access: Access) -> Seat:
        key = (user.segment, access)
        if access is Access.NONE and key not in self._seats and _NOBODY in self._seats:
            # The pool that gave the catalog belongs to the first user who comes, and to no second one:
            # an import could have prepared a channel that all its workers share.
            self._seats[key] = self._seats.pop(_NOBODY)
        task = self._seats.get(key)
        if task is None or (task.done() and not _usable(task)):
            if task is not None:
                await self._drop(key)
            task = self._start(key, None if access is Access.NONE else user)
        # Shielded: a caller that goes away must not take the seat from the others who wait for it.
        return await asyncio.shield(task)

    def _start(self, key: tuple[str, Access], user: User | None) -> "asyncio.Task[Seat]":
        task = asyncio.create_task(self._make(user, key[1]))
        self._seats[key] = task
        # Whoever waits for the seat hears the failure; if nobody does, nobody needs to.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _make(self, user: User | None, access: Access) -> Seat:
        stack = contextlib.ExitStack()
        home = None
        scratch = await asyncio.to_thread(self._make_scratch)
        try:
            if user is not None:
                home = await asyncio.to_thread(
                    stack.enter_context, self.homes.lease(user.name, keep_s=self.keep_s)
                )
            # In a thread: what may be read is found by looking through the tool file's folder.
            policy = await asyncio.to_thread(self._policy, user, access, home, scratch)
            pool = await Pool.start(
                self.forkserver,
                policy,
                self._config(user, access, home, scratch),
                home_fd=home.fd if home is not None and access is Access.WRITE else None,
                load_timeout_s=self.settings.load_timeout_s,
                target=self.settings.idle_workers,
            )
        except BaseException:
            await asyncio.to_thread(stack.close)
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            raise
        return Seat(pool=pool, home=home, scratch=scratch, _stack=stack)

    def _policy(self, user: User | None, access: Access, home: HomeLease | None, scratch: Path) -> Policy:
        read, list_only = self._readable()
        if access is Access.READ and home is not None:
            read = (*read, home.path)
        name = user.name if user is not None else "nobody"
        return Policy(
            home=home.path if home is not None and access is Access.WRITE else None,
            scratch=scratch,
            read=read,
            homes=(self.settings.homes,),
            list_only=list_only,
            programs=not self.settings.deny_run,
            environment=load_environment(self.environment, user=name, scratch=scratch),
            limits=self.settings.limits(),
            guard=True,
            without=self._left_out(),
        )

    def _left_out(self) -> tuple[str, ...]:
        """Return the layers that the tier leaves out: none, unless `--isolation guard` was asked for."""
        return GUARD_ONLY if self.settings.isolation == "guard" else ()

    def _config(
        self, user: User | None, access: Access, home: HomeLease | None, scratch: Path
    ) -> dict[str, object]:
        name = user.name if user is not None else "nobody"
        if home is not None and access is Access.WRITE:
            environment = call_environment(user=name, home=home.path)
        else:
            environment = homeless_environment(user=name, empty=scratch / "empty")
        return {"files": list(self.targets), "call_environment": environment}

    def _readable(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        read: list[Path] = []
        list_only: list[Path] = []
        deny = (*self.settings.private_paths, self.settings.homes)
        extra = (Path(__file__).parent,)
        homes = self.homes.recorded()
        for target in self.targets:
            file = Path(split_target(target)[0]).absolute()
            more_read, more_list = default_read(deny=deny, tool_file=file, extra=extra, homes=homes)
            read += more_read
            list_only += more_list
        return tuple(dict.fromkeys(read)), tuple(dict.fromkeys(list_only))

    def _make_scratch(self) -> Path:
        parent = self.settings.state_dir / "scratch"
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=parent))
        for folder in (*FOLDERS.values(), "empty"):
            (scratch / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        return scratch

    async def _drop(self, key: tuple[str, Access]) -> None:
        task = self._seats.pop(key, None)
        if task is None:
            return
        # Waited for, not awaited: its own end, cancellation included, is not ours.
        await asyncio.wait({task})
        if not task.cancelled() and task.exception() is None:
            with contextlib.suppress(Exception):
                await task.result().close()

    def _sweep_after_crash(self) -> None:
        """Tidy up after processes that ended without their own clean-up."""
        for segment, emptied in self.homes.sweep().items():
            if emptied.removed:
                log.info("home swept", extra={"user": segment, "removed": emptied.removed})
        self.store.sweep()

    async def _sweep(self) -> None:
        """End the sessions of users idle for long: their zygotes end, their homes are emptied."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.settings.session_idle_s / 2))
            now = time.monotonic()
            for key, task in list(self._seats.items()):
                if key == _NOBODY or not task.done() or task.cancelled() or task.exception():
                    continue
                seat = task.result()
                if seat.calls == 0 and now - seat.used_at > self.settings.session_idle_s:
                    log.info("session ended", extra={"user": key[0], "reason": "idle"})
                    self.state.forget(key[0])
                    await self._drop(key)

    async def _close(self) -> None:
        for key in list(self._seats):
            self._seats[key].cancel()
            await self._drop(key)
        await self.forkserver.close()


def _usable(task: "asyncio.Task[Seat]") -> bool:
    return not task.cancelled() and task.exception() is None and task.result().pool.alive
