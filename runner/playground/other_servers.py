"""Other servers that a page of the Playground has this server connect to: who may, and how each of them is.

Each belongs to the browser session that asked for it, is seen from no other, and ends with that session. What
is asked of it goes to a proxy of its own, in this process, which keeps the limits, the guard and the
confinement of `runner proxy`; its requests come in through the same checks as those for this server.

Source: `docs/decisions/0043-who-connects-from-the-page.md`.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.errors import RunnerError
from runner.http.context import Site
from runner.http.identify import login_of, of_page
from runner.http.responses import SAFE_HEADERS, Refusal, refused
from runner.http.under_way import UnderWay
from runner.playground.json_body import object_of
from runner.settings.settings import Settings
from runner.users.identity import User

__all__ = ["COMMAND", "CONNECTIONS_CHANGED", "Beside", "Connect", "ConnectedServer", "Wanted", "may_reach"]

log = logging.getLogger(__name__)

COMMAND = "command"
"""The word of `playground_connect` for servers that are commands."""

CONNECTIONS_CHANGED = "playground_servers"
"""The event that the state of some server has changed."""

_ANY = "*"
_MOST = 16
_MOST_IN_ALL = 64
_LOOK_EVERY_S = 5.0
_MAX_BODY = 64 * 1024
_MAX_NAME = 64
_TOLD_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A server that a page wants.

    Attributes:
        name: What the page calls it.
        entry: How it is reached, with the keys of an entry of `mcp.json`.
    """

    name: str
    entry: Mapping[str, Any]

    @property
    def is_command(self) -> bool:
        """Whether it is started here."""
        return "command" in self.entry

    @property
    def target(self) -> str:
        """Return how people know it: its address, or its command."""
        if self.is_command:
            return " ".join([str(self.entry["command"]), *map(str, self.entry.get("args", ()))])
        return str(self.entry["url"])


class ConnectedServer(Protocol):
    """A server that was connected to, behind a proxy of its own."""

    @property
    def web(self) -> ASGIApp:
        """The proxy: MCP at `/mcp`."""

    @property
    def tier(self) -> str | None:
        """The isolation tier that it runs in; None where it does not run here."""

    def credentials(self, user: User) -> Mapping[bytes, bytes]:
        """Return the headers with which a request of a known user passes the proxy's check of tokens."""

    def said(self) -> Mapping[str, Any] | None:
        """Return what it said of itself as it was met last: `protocol`, `name`, `version`, `capabilities`.

        The first is the version of MCP that is spoken with it. None while nobody has connected to it.
        """

    async def fault(self) -> str | None:
        """Ask it whether it is there; say why not, or return None."""


Connect = Callable[[Wanted, User], AbstractAsyncContextManager[ConnectedServer]]
"""Connects to a server for a user. Raises `RunnerError` where that is not possible."""


def may_reach(settings: Settings, url: str) -> bool:
    """Say whether a page may have an address asked: `playground_connect` names its origin, or any."""
    allowed = settings.playground_connect or ()
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        asked = _origin(url) if usable else None
    except ValueError:
        return False
    return asked is not None and (_ANY in allowed or asked in {_origin(each) for each in allowed})


def _origin(url: str) -> tuple[str, str, int] | None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return None
    return (
        parts.scheme,
        (parts.hostname or "").lower(),
        parts.port or (443 if parts.scheme == "https" else 80),
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Server:
    user: User
    wanted: Wanted
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: str = "connecting"
    why: str = ""
    connected: ConnectedServer | None = None
    said: Mapping[str, Any] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    def reached(self) -> ConnectedServer:
        """Return it. Raises `Refusal` where it is not connected."""
        if self.connected is None:
            raise Refusal(503, self.why or f"the server {self.wanted.name} is not connected yet")
        return self.connected

    def told(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.wanted.name,
            "target": self.wanted.target,
            "kind": "command" if self.wanted.is_command else "address",
            "state": self.state,
            "why": self.why,
            "tier": self.connected.tier if self.connected is not None else None,
            "said": self.connected.said() if self.connected is not None else None,
        }


class Beside:
    """The other servers of all pages.

    Args:
        site: Whose pages they are.
        connect: Connects to one.
        own: Says of the servers behind this one, if it is a proxy, why each cannot be reached.
    """

    def __init__(self, site: Site, connect: Connect, own: Callable[[], Mapping[str, str]] = dict) -> None:
        self._site = site
        self._connect = connect
        self._own = own
        self._servers: dict[str, _Server] = {}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/play/servers", self._list, methods=["GET"]),
            Route("/play/servers", self._add, methods=["POST"]),
            Route("/play/servers/{id}", self._remove, methods=["DELETE"]),
            Route("/play/servers/{id}/again", self._again, methods=["POST"]),
            Route("/play/servers/{id}/mcp", _ConnectedServerApp(self)),
        ]

    def ends_with(self, under_way: UnderWay) -> None:
        """Have the servers of a browser session end with it."""
        under_way.also(self._end_of)

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(self._drop(server) for server in list(self._servers.values())))

    def of(self, user: User, key: str) -> _Server:
        """Return a server of a user.

        Raises:
            Refusal: 404; there is none of that id, or it is another's.
        """
        found = self._servers.get(key)
        if found is None or found.user != user:
            raise Refusal(404, "this page has no such server any more; connect to it again")
        return found

    async def caller(self, request: Request) -> User:
        """Return whose page asks.

        Raises:
            Refusal: As from `of_page`; 403 where pages may connect to nothing.
        """
        user = await of_page(self._site, request)
        if not self._site.settings.playground_connect:
            raise Refusal(
                403,
                "pages of this server may connect to no other; its operator allows that with "
                "playground_connect, and runner dev does so on this machine",
            )
        return user

    async def _list(self, request: Request) -> JSONResponse:
        user = await of_page(self._site, request)
        mine = [server.told() for server in self._servers.values() if server.user == user]
        return JSONResponse({"servers": mine, "own": dict(self._own())}, headers=SAFE_HEADERS)

    async def _add(self, request: Request) -> JSONResponse:
        user = await self.caller(request)
        wanted = _wanted(await object_of(request, most=_MAX_BODY))
        self._check(wanted)
        mine = [server for server in self._servers.values() if server.user == user]
        if any(server.wanted.name == wanted.name for server in mine):
            raise Refusal(409, f"there is a server {wanted.name} here already; give this one another name")
        if len(mine) >= _MOST or len(self._servers) >= _MOST_IN_ALL:
            raise Refusal(429, f"{len(mine)} servers are open; close one first")
        server = _Server(user=user, wanted=wanted)
        self._servers[server.id] = server
        self._begin(server)
        return JSONResponse(server.told(), status_code=201, headers=SAFE_HEADERS)

    async def _again(self, request: Request) -> JSONResponse:
        server = self.of(await self.caller(request), request.path_params["id"])
        self._check(server.wanted)
        await self._stop(server)
        if server.id in self._servers:
            self._begin(server)
        return JSONResponse(server.told(), headers=SAFE_HEADERS)

    async def _remove(self, request: Request) -> JSONResponse:
        server = self.of(await self.caller(request), request.path_params["id"])
        await self._drop(server)
        return JSONResponse({}, headers=SAFE_HEADERS)

    def _check(self, wanted: Wanted) -> None:
        settings = self._site.settings
        if wanted.is_command and COMMAND not in (settings.playground_connect or ()):
            raise Refusal(403, "pages of this server may start no commands (playground_connect)")
        if not wanted.is_command and not may_reach(settings, str(wanted.entry["url"])):
            raise Refusal(
                403, f"pages of this server may not connect to {wanted.target} (playground_connect)"
            )

    def _begin(self, server: _Server) -> None:
        server.over = asyncio.Event()
        self._now(server, "connecting")
        server.task = asyncio.create_task(self._live(server))

    async def _live(self, server: _Server) -> None:
        """Connect, and stay so until it is over; a task of its own, in which all of that begins and ends."""
        try:
            async with self._connect(server.wanted, server.user) as connected:
                server.connected = connected
                self._now(server, "up")
                await self._watch(server, connected)
        except RunnerError as error:
            self._now(server, "down", str(error))
        except Exception as error:  # noqa: BLE001 - what others' libraries raise ends only this
            log.warning(
                "a page's server failed", extra={"server": server.wanted.name, "problem": repr(error)}
            )
            self._now(server, "down", f"the connection failed: {error}")
        finally:
            server.connected = None

    async def _watch(self, server: _Server, connected: ConnectedServer) -> None:
        while not server.over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await server.over.wait()
                    return
            if login_of(self._site, server.user) is None:
                self._servers.pop(server.id, None)
                return
            fault = await connected.fault()
            self._now(server, "up" if fault is None else "down", fault or "")

    def _now(self, server: _Server, state: str, why: str = "") -> None:
        said = server.connected.said() if server.connected is not None else None
        if (server.state, server.why, server.said) == (state, why, said):
            return
        told = self._site.own_paths.told(why)[:_TOLD_CHARS]
        server.said = said
        server.state, server.why = state, told
        event = {"type": CONNECTIONS_CHANGED}
        self._site.events.publish(event, user=server.user.segment, session=server.user.session)

    async def _stop(self, server: _Server) -> None:
        server.over.set()
        if server.task is not None:
            await asyncio.wait({server.task}, timeout=_LOOK_EVERY_S)
            # One that still connects has not looked whether it is over.
            server.task.cancel()
            await asyncio.wait({server.task})

    async def _drop(self, server: _Server) -> None:
        self._servers.pop(server.id, None)
        await self._stop(server)

    async def _end_of(self, user: User) -> None:
        mine = [server for server in self._servers.values() if server.user == user]
        await asyncio.gather(*(self._drop(server) for server in mine))


@dataclass(frozen=True, slots=True)
class _ConnectedServerApp:
    """The way of a page to MCP of one of its servers, as `/play/mcp` is to that of this one."""

    beside: Beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            user = await self.beside.caller(request)
            server = self.beside.of(user, request.path_params["id"])
            connected = server.reached()
        except Refusal as refusal:
            await refused(refusal.status, refusal.sentence, refusal.headers)(scope, receive, send)
            return
        kept = [
            (name, value) for name, value in scope["headers"] if name not in (b"authorization", b"cookie")
        ]
        headers = [*kept, *connected.credentials(user).items()]
        inner = {**scope, "path": "/mcp", "raw_path": b"/mcp", "root_path": "", "headers": headers}
        for key in ("app", "router", "endpoint", "path_params", "auth", "user"):
            inner.pop(key, None)
        await connected.web(inner, receive, send)


def _wanted(said: Mapping[str, Any]) -> Wanted:
    """Read what a page wants.

    Raises:
        Refusal: 400; it says something else than a name and how the server is reached.
    """
    name, url, command = said.get("name"), said.get("url"), said.get("command")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise Refusal(400, f"name says what the page calls the server, in up to {_MAX_NAME} characters")
    if (url is None) == (command is None):
        raise Refusal(400, "one of url and command says how the server is reached")
    if isinstance(url, str):
        return Wanted(name=name, entry={"url": url, "headers": said.get("headers", {})})
    if not isinstance(command, Sequence) or isinstance(command, str) or not command:
        raise Refusal(400, "command is a list: the program, and its arguments")
    entry = {"command": command[0], "args": list(command[1:]), "env": said.get("env", {})}
    return Wanted(name=name, entry=entry)
