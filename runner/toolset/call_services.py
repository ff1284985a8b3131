"""Services and quotas of calls, for tool files of ours and servers of others.

Both have one life cycle: calls are observed, and files and sessions looked after, until the last has ended.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
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
from runner.toolset.admission import Admission
from runner.toolset.approvals import ApprovalFiles, Approvals
from runner.toolset.drain import Drain
from runner.toolset.rates import Rates
from runner.toolset.session_state import SessionState
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.users.identity import User
from sandbox.probe.machine import Tier

__all__ = ["CallCounts", "CallServices"]

_SWEEP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """Quotas and recorders of calls: one for all executors of the same users.

    Attributes:
        admission: Who may start a call.
        rates: What has been used of limits by name and of tools.
        drain: Ends calls when the server is to end.
        observers: Who hears of each call that has ended.
    """

    admission: Admission
    rates: Rates
    drain: Drain
    observers: Observers

    @classmethod
    def of(cls, settings: Settings, observers: Observers) -> "CallCounts":
        """Return fresh counts for some settings."""
        return cls(
            admission=Admission.of(settings),
            rates=Rates(limits=settings.call_limits),
            drain=Drain(),
            observers=observers,
        )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CallServices(ABC):
    """Services of calls.

    Attributes:
        settings: The effective settings.
        library: My Files of every user.
        counts: What calls count against.
        ends_sessions: Whether files of sessions end here; else another host ends them.
        beside: Services of this process whose files, sessions and recorders these share, if there are any.
        code: Tools of code mode, which stand beside this one, if there are any.
        events: What happens, for the users' interfaces.
        state: Session state of the tools.
        problems: Why servers behind this one cannot be reached.
        claims: The folder of the locks that say which call owns a staged name.
        links: Makes download links of stored files, for clients.
        upkeep: Looks after the users' files.
        call_locks: Say which users have calls under way, in every process with the same state folder.
        admission: Who may start a call.
        rates: What has been used of limits by name and of tools.
        drain: Ends calls when the server is to end.
        observers: Who hears of each call that has ended.
        approvals: Calls that wait for a person.
    """

    settings: Settings
    library: Library
    counts: CallCounts
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
    observers: Observers = field(init=False)
    approvals: Approvals = field(init=False)

    def __post_init__(self) -> None:
        settings, counts = self.settings, self.counts
        if self.beside is not None:
            self.events, self.upkeep = self.beside.events, self.beside.upkeep
        library = self.library = replace(self.library, changed=partial(tell, self.events))
        if self.beside is None:
            self.upkeep = Upkeep(library=library, idle_s=settings.session_idle_s, ends=self.ends_sessions)
        self.claims = settings.state_dir / "claims"
        tokens = Tokens(settings.state_dir / "tokens.json")
        self.links = DownloadLinks(tokens=tokens, base=settings.public_url or "")
        self.call_locks = CallLocks(settings.state_dir)
        self.admission, self.rates = counts.admission, counts.rates
        self.drain, self.observers = counts.drain, counts.observers
        self.approvals = Approvals(files=ApprovalFiles(settings.state_dir))

    def rebound(self, settings: Settings) -> None:
        """Go by other settings from the next call on, as far as they can be taken over."""
        self.settings = with_live(self.settings, settings)
        self.rates.limits = self.settings.call_limits
        self.admission.rebound(self.settings)
        self.library.rebound(self.settings)

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the servers that stand behind this one, by the names with which what they offer begins."""
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
        """Return the files that it serves, or that name its servers."""

    @property
    @abstractmethod
    def places(self) -> Sequence[tuple[str, str]]:
        """Return the targets of the server, each with a name for people and in full."""

    def files(self, user: User, *, trace: str | None = None) -> MyFiles:
        """Return My Files of a user, in the session in which the user speaks.

        Args:
            user: The user.
            trace: The call that works with them.
        """
        return self.library.of(user.name, user.session, trace=trace)

    @abstractmethod
    def prepare(self, settings: Settings) -> Callable[[], Sequence[str]]:
        """Read what settings name; return what takes both over, and says what has changed beside settings."""

    @abstractmethod
    def make_room(self) -> bool:
        """Give up descriptors that nobody needs now; False if there are none at once."""

    @abstractmethod
    async def end_session(self, session: str) -> None:
        """End a session of any user."""

    @abstractmethod
    async def faults(self) -> Mapping[str, str]:
        """Return the parts at fault, by name, each with a sentence on why calls cannot be taken now."""

    @abstractmethod
    async def gauges(self) -> Gauges:
        """Return the current state, for monitoring."""

    @asynccontextmanager
    async def running(self, *, lasting: bool = True) -> AsyncIterator[None]:
        """Look after calls, files and sessions until the block ends; then end all that is left of them.

        Args:
            lasting: Whether sessions end with this process; else they go on in a later one.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self.beside is not None:
                stack.push_async_callback(self._end_processes)
                stack.callback(asyncio.create_task(self._sweep()).cancel)
                yield
                return
            # In turn backwards: what ends a call is still observed.
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
        """End all processes that take calls, and whatever waits for them."""
