"""Upstream servers of a proxy, and for each client the connections to them.

A client of the handshake era has connections of its own, which end with it. Later eras have no sessions:
there each user has connections, for each kind of client, which end when they have not been used for long.
"""

import asyncio
import logging
import textwrap
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import mcp_types
from mcp.server.context import ServerRequestContext

from runner.contract.own_paths import OwnPaths
from runner.files.download_links import DownloadLinks
from runner.files.my_files import open_library
from runner.homes.homes import Homes
from runner.homes.scratch import sweep
from runner.http.link_downloads import routes
from runner.http.loopback import Loopback
from runner.observation.metrics import Gauges
from runner.observation.observers import Observers
from runner.output_guard.guard import OutputGuard
from runner.protocol.eras import has_sessions
from runner.protocol.internals.connection import connection_of
from runner.protocol.resource_tools import RemoteError
from runner.proxy.namespacing import Names
from runner.proxy.questions import Pausing
from runner.proxy.remote import EVERYBODY, Announced, Server, ServerInfo, ServerTransport, ServerUnreachable
from runner.proxy.upstream import Front, Upstream
from runner.settings.isolation import in_force
from runner.settings.settings import Settings
from runner.steps.request import file_delivery_of
from runner.store.measuring import measured
from runner.system.once import Once
from runner.toolset.call_services import CallCounts, CallServices
from runner.users.identity import User, is_loopback
from sandbox.host import descriptors
from sandbox.probe.machine import Tier

__all__ = ["Upstreams"]

log = logging.getLogger(__name__)

_STATE = "toolcell_upstreams"
_MOST_BACKENDS = 64
# For one user at one server: a client may change its name with each request.
_MOST_KINDS = 8
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - addresses that nobody can be reached by
_MOST_CLOSING = 4
# A client whose `server/discover` gets no answer tries another handshake, some after ten seconds.
_DISCOVER_S = 5.0
_WEAKEST_FIRST = (Tier.GUARD, Tier.PROCESS, Tier.USER, Tier.NAMESPACE)

R = TypeVar("R")

_Context = ServerRequestContext[Any, Any]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Upstreams(CallServices):
    """One proxy at work. Make one with `open`.

    Attributes:
        ways: The servers.
        names: Translates between clients' names and servers' names.
        guard: The output guard.
        own_paths: Redacts the host's paths.
        pausing: Calls that wait for answers of clients without sessions.
    """

    ways: Mapping[str, Server]
    names: Names
    guard: OutputGuard
    pausing: Pausing = field(default_factory=Pausing)
    own_paths: OwnPaths = field(init=False)
    _of_users: dict[tuple[str, str, str], Upstream] = field(default_factory=dict)
    _closing: set["asyncio.Task[Any]"] = field(default_factory=set)
    _loopback: "Once[Loopback]" = field(init=False)

    def __post_init__(self) -> None:
        CallServices.__post_init__(self)
        self.own_paths = OwnPaths.of(self.settings, self.named_files)
        self._loopback = Once(self._open_loopback)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, ways: Sequence[Server]) -> "AsyncIterator[Upstreams]":
        """Be ready until the block ends. A server is connected to for the first client that comes.

        Args:
            settings: The effective settings.
            ways: The servers.
        """
        # After a crash homes of servers are left.
        await asyncio.to_thread(sweep, settings.homes, settings.uids)
        if any(way.is_command and way.contract != "guard" for way in ways):
            await asyncio.to_thread(Homes.of(settings).sweep)
        upstreams = cls(
            settings=settings,
            ways={way.name: way for way in ways},
            names=Names(tuple(way.name for way in ways)),
            library=open_library(settings),
            guard=OutputGuard.of(settings),
            counts=CallCounts.of(settings, Observers.of(settings)),
        )
        async with upstreams.running():
            yield upstreams

    def prepare(self, settings: Settings) -> Callable[[], Sequence[str]]:
        """Return a function that applies new settings: now, and for servers at their next connection."""

        def take() -> list[str]:
            self.rebound(settings)
            return []

        return take

    @property
    def tier(self) -> Tier:
        """The weakest isolation tier that any of its servers runs in."""
        running = [way.tier for way in self.ways.values() if way.tier is not None]
        return min(running, key=_WEAKEST_FIRST.index, default=in_force(self.settings))

    @property
    def kind(self) -> str:
        """Return a short name of the served target."""
        return "proxy"

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the servers that stand behind this one, by the names with which what they offer begins."""
        return self.names.servers if self.names.prefixed else ()

    @property
    def named_files(self) -> list[Path]:
        """Return the files that name the servers, or that they are started from."""
        return [file for way in self.ways.values() for file in way.files]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Return the servers, each with its name and its place."""
        return [(way.name, f"{way.name}\n{way.place}") for way in self.ways.values()]

    @property
    def offers_resource_tools(self) -> bool:
        """True if a model gets tools with which it reads the servers' resources."""
        return self.settings.resource_tools and self.guard.config.resources.enabled

    @property
    def offers_files(self) -> bool:
        """True if clients get the contract and a list of their files, as with our own tools."""
        return self.settings.has_extras and any(way.is_contracted for way in self.ways.values())

    @property
    def may_take_files(self) -> bool:
        """True if some server may have a tool that takes the user's files."""
        return any(way.contract != "guard" for way in self.ways.values())

    async def links_for(self, server: str) -> DownloadLinks | None:
        """Return the maker of links that a server can fetch; None if this proxy has no address for it."""
        way = self.ways[server]
        if way.is_command or (way.is_near and self.settings.public_url is None):
            return replace(self.links, base=(await self._loopback.get()).url)
        # Over HTTP without `public_url` the base is where we listen, which may be this machine's alone.
        host = urlsplit(self.links.base).hostname or ""
        is_open = self.settings.public_url is not None or (
            host != "" and not is_loopback(host) and host not in _ANYWHERE
        )
        return self.links if is_open else None

    async def in_home(self, upstream: Upstream, user: User) -> None:
        """Restart a command in the home of its user, if it runs elsewhere and should not."""
        if upstream.server.wants_home(user) and upstream.home is None and not upstream.busy:
            await upstream.drop()

    def upstream(self, ctx: _Context, user: User, server: str) -> Upstream:
        """Return the connection to a server on behalf of the client of a request."""
        begins = ctx.method == "initialize"
        if begins:
            params = mcp_types.InitializeRequestParams.model_validate(ctx.params or {}, by_name=False)
            announced = Announced(info=params.client_info, capabilities=params.capabilities)
        else:
            session = ctx.session
            info = session.client_params.client_info if session.client_params else None
            announced = Announced(info=info, capabilities=session.client_capabilities)
        if not begins and not has_sessions(ctx):
            return self._of_user(user, server, announced)
        connection = connection_of(ctx)
        own: dict[str, Upstream] = connection.state.setdefault(_STATE, {})
        if server not in own:
            own[server] = self._new(user, server, announced, Front(connection))
            connection.exit_stack.callback(self._end, own[server])
        upstream = own[server]
        if not begins and upstream.front is not None and not upstream.front.is_ready.is_set():
            # Only now is it known in which session the user speaks.
            upstream.user = user
            self._keep(upstream.front.begin())
        return upstream

    def connect(self, ctx: _Context, user: User) -> None:
        """Begin to connect to all servers on behalf of a client with sessions, ahead of its first request."""
        for server in self.names.servers:
            self._keep(self._meet(self.upstream(ctx, user, server)))

    def of_client(self, ctx: _Context) -> Collection[Upstream]:
        """Return the connections of a client with sessions, as far as there are any."""
        own: dict[str, Upstream] = connection_of(ctx).state.get(_STATE, {})
        return own.values()

    async def end_session(self, session: str) -> None:
        """End a session: its files go, where files do not persist. Connections end with their clients."""
        await self.upkeep.end(session)

    async def faults(self) -> Mapping[str, str]:
        """Return the reason why no call can be taken; one unreachable server does not count."""
        return self.observers.faults()

    async def gauges(self) -> Gauges:
        """Return the current state, for monitoring."""
        running, waiting = self.admission.counts
        return Gauges(
            running=running,
            waiting=waiting,
            faults=tuple(self.observers.faults()),
            **asdict(await measured(self.library.store)),
            audit_pending=self.observers.audit.pending if self.observers.audit is not None else 0,
        )

    def _of_user(self, user: User, server: str, announced: Announced) -> Upstream:
        key = (user.name, server, announced.key)
        if key not in self._of_users:
            own = {key for key in self._of_users if key[:2] == (user.name, server)}
            if len(own) >= _MOST_KINDS and not self._end_oldest(own):
                raise RemoteError(
                    f"{len(own)} kinds of clients of this user have requests or subscriptions at {server}, "
                    "and no more may; end one, and let clients keep their name and version"
                )
            if len(self._of_users) >= _MOST_BACKENDS or not descriptors.are_plenty():
                self.make_room()
            self._of_users[key] = self._new(user, server, announced, None)
        return self._of_users[key]

    def _end_oldest(self, keys: Collection[tuple[str, str, str]]) -> bool:
        """Begin to end a connection, and return whether one may end.

        It is one of the user who has most of them, and of those the one that was used longest ago.
        """
        held = Counter(key[0] for key in keys)
        idle = [(-held[key[0]], self._of_users[key].used_at, key) for key in keys]
        idle = [each for each in idle if not self._of_users[each[2]].in_use]
        if idle:
            self._end(self._of_users.pop(min(idle)[2]))
        return bool(idle)

    def _new(self, user: User, server: str, announced: Announced, front: Front | None) -> Upstream:
        return Upstream(
            server=self.ways[server],
            services=self,
            names=self.names,
            config=self.guard.config,
            user=user,
            transport=partial(self._way_to, self.ways[server], user),
            front=front,
            announced=announced,
        )

    def _way_to(self, server: Server, user: User) -> ServerTransport:
        async def reach() -> Sequence[tuple[str, int]]:
            """Return the address at which a command fetches files, if a tool of it is given links."""
            fetches = not server.fetching.isdisjoint((EVERYBODY, user.name))
            return ((await self._loopback.get()).address,) if fetches else ()

        return server.transport(user, self.settings, reach if server.wants_home(user) else None)

    async def _open_loopback(self) -> Loopback:
        """Open where servers on this machine fetch files, with the first that needs it."""
        return await Loopback.open(routes(self.links.tokens, self.library, clock=self.links.clock))

    async def introduction(self, ctx: _Context, user: User) -> ServerInfo:
        """Return the proxy's server information, after connecting its servers for the first client.

        Raises:
            ServerUnreachable: None of the servers can be reached.
        """
        # Of several, one that cannot be reached delays its first client only.
        is_first = not self._infos()
        new = [
            server.name
            for server in self.ways.values()
            if server.info is None and (is_first or server.name not in self.problems)
        ]
        meetings = [self._keep(self._meet(self.upstream(ctx, user, server))) for server in new]
        if meetings:
            limit_s = None if ctx.method == "initialize" else _DISCOVER_S
            done, pending = await asyncio.wait(meetings, timeout=limit_s)
            if not self._infos() and pending:
                return ServerInfo(name="runner proxy")
            if not self._infos():
                raise ServerUnreachable("; ".join(task.result() for task in done))
        return _together(self._infos(), prefixed=self.names.prefixed)

    def _infos(self) -> dict[str, ServerInfo]:
        return {name: server.info for name, server in self.ways.items() if server.info is not None}

    async def _meet(self, upstream: Upstream) -> str:
        """Connect to a server and record its information; return the error, or an empty text."""
        server, is_used = upstream.server, upstream.is_connected
        try:
            session = (await upstream.connected()).session
        except ServerUnreachable as error:
            return str(error)
        if server.info is not None:
            return ""
        if server.contract != "guard":
            await upstream.spec("")
            for tool in () if is_used else upstream.specs.values():
                server.learn(tool, EVERYBODY, by_url=file_delivery_of(self.settings) == "url")
        able = session.server_capabilities
        server.info = ServerInfo(
            name=session.server_info.name if session.server_info else server.name,
            version=session.server_info.version if session.server_info else None,
            instructions=session.instructions,
            capabilities=able.model_dump(by_alias=True, mode="json", exclude_none=True) if able else {},
        )
        return ""

    async def _end_idle(self) -> None:
        now = time.monotonic()
        for key, upstream in list(self._of_users.items()):
            if now - upstream.used_at > self.settings.session_idle_s and not upstream.in_use:
                self._end(self._of_users.pop(key))

    async def _end_processes(self) -> None:
        await self.pausing.close()
        await asyncio.gather(*(upstream.drop() for upstream in self._of_users.values()), *self._closing)
        await self._loopback.end(Loopback.close)

    def make_room(self) -> bool:
        """Begin to end a connection; False, since that takes a moment."""
        if len(self._closing) < _MOST_CLOSING:
            self._end_oldest(self._of_users)
        return False

    def _end(self, upstream: Upstream) -> None:
        self._keep(upstream.drop())

    def _keep(self, act: Coroutine[Any, Any, R]) -> "asyncio.Task[R]":
        task = asyncio.create_task(act)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task


def _together(infos: Mapping[str, ServerInfo], *, prefixed: bool) -> ServerInfo:
    if not prefixed:
        return next(iter(infos.values()))
    # Indented, so that the text of one server is not taken for another's.
    instructions = [
        f"{name}:\n{textwrap.indent(about.instructions.strip(), '  ')}"
        for name, about in infos.items()
        if about.instructions
    ]
    capabilities: dict[str, Any] = {}
    for about in infos.values():
        capabilities |= about.capabilities
    return ServerInfo(
        name="runner proxy", instructions="\n\n".join(instructions) or None, capabilities=capabilities
    )
