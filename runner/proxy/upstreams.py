"""Upstream servers of a proxy, and each client's connections to them.

A client of the handshake era has its own connections, which end with its session. Later eras have no
sessions: there, each user has connections for each kind of client, which end when they are idle for long.
"""

import asyncio
import logging
import os
import textwrap
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

import mcp_types
from mcp.server.context import ServerRequestContext

from runner.contract.own_paths import OwnPaths
from runner.errors import UsageError
from runner.files.download_links import DownloadLinks
from runner.files.my_files import open_library
from runner.formats.json_walks import least_chars
from runner.homes.homes import Homes
from runner.homes.scratch import sweep
from runner.http.link_downloads import routes
from runner.http.loopback import Loopback
from runner.observation.observers import Observers
from runner.output_guard.guard import OutputGuard
from runner.protocol.eras import has_sessions
from runner.protocol.internals.connection import connection_of
from runner.protocol.internals.proxy import mend_messages_over_http
from runner.protocol.resource_tools import RemoteError
from runner.proxy.confined_command import command_server
from runner.proxy.namespacing import Names
from runner.proxy.questions import Pausing
from runner.proxy.remote import (
    EVERYBODY,
    Announced,
    AnswerBound,
    HttpServer,
    Server,
    ServerInfo,
    ServerUnreachable,
    most_message_bytes,
)
from runner.proxy.targets import Target, expanded
from runner.proxy.upstream import Front, Upstream
from runner.settings.isolation import in_force
from runner.settings.settings import Settings
from runner.system.once import Once
from runner.system.worker_environment import framework_environment
from runner.toolset.call_services import CallServices
from runner.users.identity import User, is_loopback
from sandbox.host import descriptors
from sandbox.probe.machine import Tier

__all__ = ["Upstreams", "ways_to"]

log = logging.getLogger(__name__)

_STATE = "toolcell_upstreams"
_MOST_BACKENDS = 64
# Of one user at one server, since a client may change its name with each request.
_MOST_KINDS = 8
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - addresses that nobody can be reached by
_MOST_CLOSING = 4
# Longest member of a server's identity, such as its icons, in characters.
_LONG = 64 * 1024
# A client whose `server/discover` gets no answer tries another handshake, some after ten seconds.
_DISCOVER_S = 5.0
_WEAKEST_FIRST = (Tier.GUARD, Tier.PROCESS, Tier.USER, Tier.NAMESPACE)

R = TypeVar("R")

_Context = ServerRequestContext[Any, Any]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Upstreams(CallServices):
    """A running proxy. Create one with `open`.

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
    _meetings: "WeakSet[asyncio.Task[str]]" = field(default_factory=WeakSet)
    _loopback: "Once[Loopback]" = field(init=False)

    def __post_init__(self) -> None:
        CallServices.__post_init__(self)
        self.drain.begins.append(self.pausing.stop)
        self.own_paths = OwnPaths.of(self.settings, self.named_files)
        # Opened when the first server on this machine fetches a file.
        self._loopback = Once(
            lambda: Loopback.open(routes(self.links.tokens, self.library, clock=self.links.clock))
        )
        for way in self.ways.values():
            way.loopback = self._loopback

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, ways: Sequence[Server]) -> "AsyncIterator[Upstreams]":
        """Run the proxy until the block ends. Servers are connected to when the first client connects.

        Args:
            settings: The effective settings.
            ways: The servers.
        """
        # A crash leaves orphaned homes of servers.
        await asyncio.to_thread(sweep, settings.homes, settings.uids)
        if any(way.is_command and way.contract != "guard" for way in ways):
            await asyncio.to_thread(Homes.of(settings).sweep)
        upstreams = cls(
            settings=settings,
            ways={way.name: way for way in ways},
            names=Names(tuple(way.name for way in ways)),
            library=open_library(settings),
            guard=OutputGuard.of(settings),
            observers=Observers.of(settings),
        )
        async with upstreams.running():
            yield upstreams

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
        """Return the servers' names if they are used as prefixes, else an empty tuple."""
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
        """True if models get tools that read the servers' resources."""
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
        """Return the factory for links that a server can fetch; None if it cannot reach this proxy."""
        way = self.ways[server]
        if way.is_command or (way.is_near and self.settings.public_url is None):
            return replace(self.links, base=(await self._loopback.get()).url)
        # Over HTTP without `public_url`, the base is our listening address, which may be loopback only.
        host = urlsplit(self.links.base).hostname or ""
        is_open = self.settings.public_url is not None or (
            host != "" and not is_loopback(host) and host not in _ANYWHERE
        )
        return self.links if is_open else None

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
            # The user's session is known only now.
            upstream.user = user
            self._keep(upstream.front.begin())
        return upstream

    def connect(self, ctx: _Context, user: User) -> None:
        """Start connecting to all servers for a client with sessions, ahead of its first request."""
        for server in self.names.servers:
            self._begin_meeting(self.upstream(ctx, user, server))

    def of_client(self, ctx: _Context) -> Collection[Upstream]:
        """Return the existing connections of a client with sessions."""
        own: dict[str, Upstream] = connection_of(ctx).state.get(_STATE, {})
        return own.values()

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
        """Start ending an idle connection; return whether there is one.

        It is the least recently used connection of the user with the most connections.
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
            front=front,
            announced=announced,
        )

    async def introduction(self, ctx: _Context, user: User) -> ServerInfo:
        """Return the proxy's server information, after connecting its servers for the first client.

        Raises:
            ServerUnreachable: None of the servers can be reached.
        """
        # One of several servers, if it cannot be reached, delays only the first client.
        is_first = not any(way.info for way in self.ways.values())
        new = [
            server.name
            for server in self.ways.values()
            if server.info is None and (is_first or server.name not in self.problems)
        ]
        if new:
            meetings = [self._begin_meeting(self.upstream(ctx, user, server)) for server in new]
            limit_s = None if ctx.method == "initialize" else _DISCOVER_S
            done, pending = await asyncio.wait(meetings, timeout=limit_s)
            if not pending and not any(way.info for way in self.ways.values()):
                raise ServerUnreachable("; ".join(task.result() for task in done))
        infos = {name: way.info for name, way in self.ways.items() if way.info is not None}
        if infos and not self.names.prefixed:
            return next(iter(infos.values()))
        # Indented, so that one server's text cannot pass for another's.
        instructions = [
            f"{name}:\n{textwrap.indent(info.instructions.strip(), '  ')}"
            for name, info in infos.items()
            if info.instructions
        ]
        capabilities: dict[str, Any] = {}
        for info in infos.values():
            capabilities |= info.capabilities
        return ServerInfo(instructions="\n\n".join(instructions) or None, capabilities=capabilities)

    def _begin_meeting(self, upstream: Upstream) -> "asyncio.Task[str]":
        task = self._keep(self._meet(upstream))
        self._meetings.add(task)
        return task

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
                server.learn(tool, EVERYBODY, by_url=self.settings.file_delivery == "url")
        able, about = session.server_capabilities, session.server_info
        identity = about.model_dump(by_alias=True, mode="json", exclude_none=True) if about else {}
        server.info = ServerInfo(
            identity={
                "name": server.name,
                **{key: item for key, item in identity.items() if least_chars(item, _LONG) <= _LONG},
            },
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
        # A start may take long, and its client has disconnected.
        for meeting in self._meetings:
            meeting.cancel()
        drops = (upstream.drop() for upstream in self._of_users.values())
        for end in await asyncio.gather(*drops, *self._closing, return_exceptions=True):
            if isinstance(end, Exception):
                raise end
        await self._loopback.end(Loopback.close)

    def make_room(self) -> bool:
        """Start ending a connection; return False, since that takes a moment."""
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


def ways_to(settings: Settings, targets: Sequence[Target]) -> list[Server]:
    """Return the servers; one of several that cannot be started counts as unreachable.

    Raises:
        UsageError: No server can be started: a command cannot be run, or a variable may not be used.
    """
    made: list[Server] = []
    problems: list[str] = []
    for target in targets:
        try:
            made.append(_way(settings, target))
        except UsageError as error:
            problems.append(str(error))
            made.append(Server(name=target.name, is_near=True, contract="guard", problem=str(error)))
    if len(problems) == len(targets):
        raise UsageError("; ".join(problems))
    return made


def _way(settings: Settings, target: Target) -> Server:
    if target.source is not None:
        seen = framework_environment(os.environ, ())
        allowed = {*settings.rights().variables, *seen}
        target = expanded(target, {**os.environ, **seen}, allowed=allowed)
    contract = target.contract or settings.contract
    if not target.url:
        return command_server(target, settings, contract)
    mend_messages_over_http()
    return HttpServer(
        name=target.name,
        contract=contract,
        is_near=is_loopback(urlsplit(target.url).hostname or ""),
        place=target.url,
        headers=target.headers,
        bound=AnswerBound(server=target.name, most_bytes=most_message_bytes(settings)),
    )
