"""What a proxy works with: its servers, and for each client the connections to them.

A client of the handshake era has connections of its own, which end with it. Later eras have no sessions:
there each user has connections, which end when they have not been used for long.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastmcp.client.transports import ClientTransport
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext

from runner.admission import Admission
from runner.errors import CallError, UsageError
from runner.events import Events
from runner.file_events import tell as tell_of_file
from runner.guarding import OutputGuard, config_of
from runner.identity import User
from runner.incoming import has_sessions
from runner.internals import connection_of
from runner.links import DownloadLinks
from runner.my_files import Library, MyFiles, open_library
from runner.proxy_backend import Backend, Unreachable
from runner.proxy_names import Names
from runner.remote_resources import RemoteResources
from runner.settings import Settings
from runner.state import SessionState
from runner.store.spooling import SpoolingStore
from runner.store.sweeper import sweep_now_and_then
from runner.tokens import Tokens

__all__ = ["About", "Desk", "Way"]

log = logging.getLogger(__name__)

_STATE = "toolcell_backends"
_SWEEP_S = 30.0
_MOST_BACKENDS = 64

_Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How one server is reached.

    Attributes:
        name: Its name.
        transport: Makes a way to it for a user.
        is_process: Whether it is a process of ours, which ends with its connection.
    """

    name: str
    transport: Callable[[User], ClientTransport]
    is_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the proxy says of itself: what its one server says, or that it has several."""

    name: str
    version: str | None = None
    instructions: str | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Desk:
    """One proxy at work. Make one with `open`.

    Attributes:
        settings: The effective settings.
        ways: The servers.
        names: How clients name what they offer.
        library: What was kept for each user.
        events: What happens, for the users' interfaces.
        links: Makes download links.
        guard: The output guard.
        about: What the proxy says of itself.
    """

    settings: Settings
    ways: Mapping[str, Way]
    names: Names
    library: Library
    events: Events
    links: DownloadLinks
    guard: OutputGuard
    admission: Admission
    about: About = field(default_factory=lambda: About(name="runner proxy"))
    state: SessionState = field(default_factory=SessionState)
    _of_users: dict[tuple[str, str], Backend] = field(default_factory=dict)
    _only_met: set[tuple[str, str]] = field(default_factory=set)
    _closing: set["asyncio.Task[None]"] = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, ways: Sequence[Way], first: User | None) -> "AsyncIterator[Desk]":
        """Connect to the servers once, to learn who they are, and be ready until the block ends.

        Args:
            settings: The effective settings.
            ways: The servers.
            first: The user whose requests are expected first, if one can be named.

        Raises:
            UsageError: None of the servers can be reached.
        """
        events = Events()
        library = open_library(settings)
        library = Library(
            store=library.store,
            sessions=library.sessions,
            persist=library.persist,
            changed=partial(tell_of_file, events),
        )
        desk = cls(
            settings=settings,
            ways={way.name: way for way in ways},
            names=Names(tuple(way.name for way in ways)),
            library=library,
            events=events,
            links=DownloadLinks(
                tokens=Tokens(settings.state_dir / "tokens.json"), base=settings.public_url or ""
            ),
            guard=OutputGuard(config_of(settings)),
            admission=Admission(
                max_calls=settings.max_calls,
                max_calls_per_user=settings.max_calls_per_user,
                max_queue=settings.max_queue,
            ),
        )
        sweepers = [
            asyncio.create_task(desk._sweep()),
            asyncio.create_task(sweep_now_and_then(library.store)),
        ]
        if isinstance(library.store, SpoolingStore):
            sweepers.append(asyncio.create_task(library.store.run()))
        try:
            await desk._meet(first or User("nobody"))
            if first is None:
                for server in desk.names.servers:
                    desk._end(desk._of_users.pop(("nobody", server)))
            yield desk
        finally:
            for sweeper in sweepers:
                sweeper.cancel()
            await asyncio.gather(*(backend.drop() for backend in desk._of_users.values()), *desk._closing)

    def files(self, user: User, *, trace: str | None = None) -> MyFiles:
        """Return what was kept for a user."""
        return self.library.of(user.name, user.session, trace=trace)

    def backend(self, ctx: _Context, user: User, server: str) -> Backend:
        """Return the connection to a server on behalf of the client of a request."""
        if not has_sessions(ctx):
            return self._of_user(user, server)
        connection = connection_of(ctx)
        own: dict[str, Backend] = connection.state.setdefault(_STATE, {})
        if server not in own:
            if (user.name, server) in self._only_met:
                # It told who it is; nobody uses it, and it may be a process.
                self._end(self._of_users.pop((user.name, server)))
                self._only_met.discard((user.name, server))
            own[server] = self._new(user, server, modern=False, front=connection)
            connection.exit_stack.callback(self._end, own[server])
        return own[server]

    async def tell(self, ctx: _Context, method: str, uri: str) -> None:
        """Tell the client of a request that something has changed, where its era lets us."""
        if has_sessions(ctx):
            await _pass_on(connection_of(ctx), method, uri)

    async def end_session(self, session: str) -> None:
        """Nothing to do: connections end with their clients, and files of a session once it is idle."""

    def _of_user(self, user: User, server: str) -> Backend:
        key = (user.name, server)
        self._only_met.discard(key)
        if key not in self._of_users:
            self._make_room()
            self._of_users[key] = self._new(user, server, modern=True, front=None)
        return self._of_users[key]

    def _new(self, user: User, server: str, *, modern: bool, front: Connection | None) -> Backend:
        way = self.ways[server]

        def publish(event: Mapping[str, Any]) -> None:
            outside = self.names.uri_outside(server, str(event["uri"]))
            self.events.publish({**event, "uri": outside}, user=user.segment, session=user.session)

        async def changed(method: str, uri: str) -> None:
            if uri:
                resources.updated(uri)
            elif front is not None:
                await _pass_on(front, method, "")

        resources = RemoteResources(server=server, config=self.guard.config, publish=publish)
        return Backend(
            name=server,
            transport=lambda: way.transport(user),
            resources=resources,
            modern=modern,
            changed=changed,
            ends_with_its_connection=way.is_process,
            answer_s=self.settings.idle_timeout_s,
        )

    async def _meet(self, user: User) -> None:
        met: dict[str, About] = {}
        problems: list[str] = []
        for server in self.names.servers:
            backend = self._of_user(user, server)
            try:
                session = (await backend.connected()).session
            except Unreachable as error:
                problems.append(str(error))
                log.warning("server cannot be reached", extra={"server": server, "problem": str(error)})
                continue
            able = session.server_capabilities
            met[server] = About(
                name=session.server_info.name if session.server_info else server,
                version=session.server_info.version if session.server_info else None,
                instructions=session.instructions,
                capabilities=able.model_dump(by_alias=True, mode="json", exclude_none=True) if able else {},
            )
            self._only_met.add((user.name, server))
        if not met:
            raise UsageError("; ".join(problems))
        self.about = _together(met, prefixed=self.names.prefixed)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.settings.session_idle_s / 2))
            now = time.monotonic()
            for key, backend in list(self._of_users.items()):
                if now - backend.used_at > self.settings.session_idle_s and not backend.busy:
                    self._end(self._of_users.pop(key))
            with contextlib.suppress(CallError):
                await self.library.end_idle_sessions(self.settings.session_idle_s)

    def _make_room(self) -> None:
        idle = sorted((b.used_at, key) for key, b in self._of_users.items() if not b.busy)
        if len(self._of_users) >= _MOST_BACKENDS and idle:
            self._end(self._of_users.pop(idle[0][1]))

    def _end(self, backend: Backend) -> None:
        task = asyncio.create_task(backend.drop())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _pass_on(front: Connection, method: str, uri: str) -> None:
    match method:
        case "notifications/tools/list_changed":
            await front.send_tool_list_changed()
        case "notifications/prompts/list_changed":
            await front.send_prompt_list_changed()
        case "notifications/resources/list_changed":
            await front.send_resource_list_changed()
        case "notifications/resources/updated":
            await front.send_resource_updated(uri)


def _together(met: Mapping[str, About], *, prefixed: bool) -> About:
    if not prefixed:
        return next(iter(met.values()))
    told = [f"{name}: {about.instructions}" for name, about in met.items() if about.instructions]
    capabilities: dict[str, Any] = {}
    for about in met.values():
        capabilities |= about.capabilities
    return About(name="runner proxy", instructions="\n\n".join(told) or None, capabilities=capabilities)
