"""Services and quotas of calls, for our tool files and for other servers.

Both have one life cycle: calls are observed, and files and sessions maintained, until the last call ends.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from runner.files.download_links import DownloadLinks
from runner.files.file_events import tell
from runner.files.my_files import Library, MyFiles
from runner.files.upkeep import Upkeep
from runner.homes.call_locks import CallLocks
from runner.observation.metrics import Gauges
from runner.observation.observers import Observers
from runner.settings.live import with_live
from runner.settings.settings import Settings
from runner.store.reports import measured
from runner.toolset.admission import Admission
from runner.toolset.approvals import ApprovalFiles, Approvals
from runner.toolset.drain import Drain
from runner.toolset.rates import Rates
from runner.toolset.session_state import SessionState
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.users.identity import User
from sandbox.probe.machine import Tier

__all__ = ["CallServices"]

_SWEEP_S = 30.0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CallServices(ABC):
    """Services of calls.

    Attributes:
        settings: The effective settings.
        library: My Files of every user.
        observers: Receive each call that has ended.
        ends_sessions: Whether this host ends the files of sessions; otherwise another host does.
        beside: Services of this process whose files, sessions, quotas and observers these share, if there
            are any.
        code: Services for the tools of code mode, if there are any.
        events: Events for the users' interfaces.
        state: Session state of the tools.
        problems: Reasons why servers behind this one cannot be reached.
        claims: The folder of the locks that record which call owns a staged name.
        links: Makes download links of stored files, for clients.
        upkeep: Maintains the users' files.
        call_locks: Locks of users with calls in flight, in all processes with one state folder.
        admission: Admits calls, or queues them.
        rates: Use of named limits and of rate limits of tools.
        drain: Ends calls when the server stops.
        approvals: Calls that wait for a person.
    """

    settings: Settings
    library: Library
    observers: Observers
    ends_sessions: bool = True
    beside: "CallServices | None" = None
    code: "CallServices | None" = None
    events: Events = field(default_factory=Events)
    state: SessionState = field(default_factory=SessionState)
    problems: dict[str, str] = field(default_factory=dict)
    claims: Path = field(init=False)
    links: DownloadLinks = field(init=False)
    upkeep: Upkeep = field(init=False)
    call_locks: CallLocks = field(init=False)
    admission: Admission = field(init=False)
    rates: Rates = field(init=False)
    drain: Drain = field(init=False)
    approvals: Approvals = field(init=False)

    def __post_init__(self) -> None:
        settings, beside = self.settings, self.beside
        if beside is not None:
            self.events = beside.events
        library = self.library = replace(self.library, changed=partial(tell, self.events))
        if beside is not None:
            self.upkeep, self.drain = beside.upkeep, beside.drain
            self.admission, self.rates = beside.admission, beside.rates
        else:
            self.upkeep = Upkeep(library=library, idle_s=settings.session_idle_s, ends=self.ends_sessions)
            self.drain = Drain()
            self.admission, self.rates = Admission.of(settings), Rates(limits=settings.call_limits)
        self.claims = settings.state_dir / "claims"
        tokens = Tokens(settings.state_dir / "tokens.json")
        self.links = DownloadLinks(tokens=tokens, base=settings.public_url or "")
        self.call_locks = CallLocks(settings.state_dir)
        self.approvals = Approvals(files=ApprovalFiles(settings.state_dir))

    def rebound(self, settings: Settings) -> None:
        """Apply other settings from the next call on, as far as they can change at run time."""
        self.settings = with_live(self.settings, settings)
        self.rates.limits = self.settings.call_limits
        self.admission.rebound(self.settings)
        self.library.rebound(self.settings)

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the servers behind this one, by the names that prefix their tools."""
        return ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """Return its kind: `tools` or `proxy`."""

    @property
    @abstractmethod
    def tier(self) -> Tier:
        """Return the isolation tier that tools run in."""

    @property
    @abstractmethod
    def named_files(self) -> Sequence[Path]:
        """Return the files that it serves, or that define its servers."""

    @property
    @abstractmethod
    def places(self) -> Sequence[tuple[str, str]]:
        """Return the targets of the server, each as a name for people and in full."""

    def files(self, user: User, *, trace: str | None = None) -> MyFiles:
        """Return My Files of a user, in the user's current session.

        Args:
            user: The user.
            trace: Id of the call that uses them.
        """
        return MyFiles(library=self.library, user=user.name, session=user.session or "", trace=trace)

    def prepare(self, settings: Settings) -> Callable[[], Sequence[str]]:
        """Read the files that settings name; return a function that applies both and lists other changes."""

        def take() -> Sequence[str]:
            self.rebound(settings)
            return ()

        return take

    @abstractmethod
    def make_room(self) -> bool:
        """Close unneeded descriptors; False if none can be closed at once."""

    async def end_session(self, session: str) -> None:
        """End a session of any user: its files go, where files do not persist."""
        await self.upkeep.end(session)

    async def faults(self) -> Mapping[str, str]:
        """Return the faulty parts, by name, each with a sentence on why calls cannot be accepted now."""
        return self.observers.faults()

    async def gauges(self) -> Gauges:
        """Return the current state, for monitoring."""
        running, waiting = self.admission.counts
        return Gauges(
            running=running,
            waiting=waiting,
            faults=tuple(await self.faults()),
            audit_pending=self.observers.audit.pending if self.observers.audit is not None else 0,
            events_lost=self.events.lost,
            **asdict(await measured(self.library.store)),
        )

    @asynccontextmanager
    async def running(self, *, lasting: bool = True) -> AsyncIterator[None]:
        """Maintain calls, files and sessions until the block ends; then end the remaining ones.

        Args:
            lasting: Whether sessions end with this process; otherwise they continue in a later one.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self.beside is not None:
                stack.push_async_callback(self._end_processes)
                stack.callback(asyncio.create_task(self._sweep()).cancel)
                yield
                return
            # Runs in reverse order: calls that end now are still observed.
            stack.push_async_callback(asyncio.to_thread, self.observers.close)
            stack.callback(asyncio.create_task(self.observers.run()).cancel)
            stack.callback(self.observers.record_ended)
            if lasting:
                stack.push_async_callback(self.upkeep.send_the_last)
                stack.push_async_callback(self.upkeep.end_all)
            stack.push_async_callback(self._end_processes)
            await stack.enter_async_context(self.upkeep.running(sweeps=lasting))
            stack.callback(asyncio.create_task(self._sweep()).cancel)
            yield

    async def _sweep(self) -> None:
        """End unused services at intervals."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.settings.session_idle_s / 2))
            await self._end_idle()
            if self.beside is None:
                await self.upkeep.end_idle()

    @abstractmethod
    async def _end_idle(self) -> None:
        """End the processes of users who have been idle for long."""

    @abstractmethod
    async def _end_processes(self) -> None:
        """End all processes that execute calls, and the tasks that wait for them."""
