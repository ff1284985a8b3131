"""A remote server: its description, the way to it, how that can fail, and the facts of our client."""

import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types
from fastmcp import Client
from fastmcp.client.transports import ClientTransport
from fastmcp.exceptions import FastMCPError
from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.errors import CallError, Code, RunnerError
from runner.homes.homes import HomeLease
from runner.protocol.internals.proxy import HttpAnswer
from runner.protocol.resource_tools import RemoteError
from runner.proxy.targets import Wish, contract_of
from runner.settings.execution import ExecutionSettings
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User
from sandbox.probe.machine import Tier

__all__ = [
    "EVERYBODY",
    "FAILURES",
    "Announced",
    "ConnectionLost",
    "HttpRefusal",
    "Reach",
    "Server",
    "ServerInfo",
    "ServerTransport",
    "ServerUnreachable",
    "StartFailed",
    "contained",
    "is_modern",
]

log = logging.getLogger(__name__)

FAILURES = (
    MCPError,
    FastMCPError,
    RuntimeError,
    ValueError,
    OSError,
    httpx2.HTTPError,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    anyio.EndOfStream,
)
"""All that a client raises where the server, or the way to it, is at fault; malformed answers included."""

_CREDENTIALS = frozenset({401, 403, 407})
_LATER = frozenset({429, 503})
_FINAL = _CREDENTIALS | _LATER
_MOST_RETRY_S = 86_400
_WORDS_CHARS = 300


class StartFailed(RuntimeError):
    """A server did not start, or is not an MCP server; the message has the reason."""


class ServerTransport(ClientTransport):
    """A transport to one server, which may be a command that runs in the home of its user.

    Attributes:
        session_class: Makes its session.
        home: The home, as long as the command runs in one.
        has_read_input: Whether the command, if it could not be connected to, had read its input before.
        why: What it wrote last then, with the option that would have helped.
    """

    session_class: Callable[..., ClientSession] = ClientSession
    home: HomeLease | None = None
    has_read_input: bool = True
    why: str = ""

    async def last_words(self) -> str:
        """Return what a command whose connection was lost wrote last; empty where that is not known."""
        return ""

    def hold(self) -> AbstractAsyncContextManager[HomeLease | None]:
        """Hold the home for a call: the command may end, and another take its place, before the call does."""
        return nullcontext()


class ConnectionLost(RemoteError):
    """The connection ended before the answer came.

    Attributes:
        was_refused: Whether the server has not begun what was asked; else that is not known.
    """

    def __init__(self, problem: str, *, was_refused: bool = False) -> None:
        super().__init__(problem)
        self.was_refused = was_refused


class HttpRefusal(RemoteError):
    """An HTTP response whose status is the reason for a missing answer.

    Attributes:
        status: The status.
        retry_after_s: The server's `Retry-After`, if any.
        is_final: Whether another way to connect would get no other answer.
    """

    def __init__(self, http: HttpAnswer, words: str = "") -> None:
        self.status = http.status
        self.is_final = http.status in _FINAL
        self.retry_after_s = _seconds(http.retry_after) if http.status in _LATER else None
        phrase = HTTPStatus(http.status).phrase if http.status in set(HTTPStatus) else "unknown"
        cure = ""
        if http.status in _CREDENTIALS:
            cure = "; for the operator: put valid credentials into `headers` of its entry in mcp.json"
        elif self.retry_after_s is not None:
            cure = f"; try again in {self.retry_after_s} seconds"
        detail = f": {words[:_WORDS_CHARS]}" if words else ""
        super().__init__(f"it answered with HTTP status {http.status} ({phrase}){detail}{cure}")

    @classmethod
    def of(cls, http: HttpAnswer, error: MCPError | None = None) -> "HttpRefusal | None":
        """Return the refusal that a response is; None for other responses.

        Args:
            http: The response.
            error: The error of JSON-RPC that the server sent with it, if it did.
        """
        if error is not None:
            return cls(http, error.message) if http.status in _FINAL else None
        return cls(http) if http.status >= HTTPStatus.BAD_REQUEST else None

    @property
    def failure(self) -> CallError:
        """The error of a call that was refused so."""
        code = Code.E_CRASHED if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else Code.E_TOOL
        details: dict[str, Any] = {"http_status": self.status}
        if self.status in _LATER:
            code = Code.E_BUSY
            details |= {} if self.retry_after_s is None else {"retry_after_seconds": self.retry_after_s}
        elif self.status in _CREDENTIALS:
            details["suggestion"] = "Put valid credentials into `headers` of the server's entry in mcp.json"
        return CallError(code, f"The remote server refused: {self}", details=details)


class ServerUnreachable(RemoteError):
    """A remote server could not be connected to.

    Attributes:
        refusal: The response over HTTP with which it refused, if it did.
    """

    def __init__(self, problem: str, refusal: HttpRefusal | None = None) -> None:
        super().__init__(problem)
        self.refusal = refusal


def _seconds(retry_after: str) -> int | None:
    """Return the seconds that a header `Retry-After` names, as a number or a date (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return min(int(retry_after), _MOST_RETRY_S)
    try:
        left = parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0, math.ceil(left)), _MOST_RETRY_S)


Reach = Callable[[], Awaitable[Sequence[tuple[str, int]]]]
"""Tells which addresses of ours a command may reach."""

EVERYBODY = ""
"""In place of a user's name: what a server lists when it starts, before anybody has used it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Identity of the proxy: that of its one server, or a note that it has several."""

    name: str
    version: str | None = None
    instructions: str | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """One server: how it is connected to, and what all connections to it have learned.

    Attributes:
        name: Its name.
        transport: Makes a way to it for a user, by the settings in force now; a command gets the addresses of
            ours that it may reach if it is to run in the home of its user.
        is_command: Whether it is a process of ours.
        contract: Whether its tools are treated like our own.
        is_near: Whether it runs on this machine.
        tier: The isolation tier that it runs in, if it is a process of ours, which ends with its connection.
        files: The files that it is started from, as far as they are known.
        hint: Returns the option that would have helped a server that we confine, from its error output.
        least_connect_s: How long it has to start at least, whatever the settings have.
        place: Its address or command, which no client is told.
        info: What it says of itself, once it has been connected to.
        mode: The mode of connecting that works where the other one ended it, so that only the first
            connection starts it twice.
        is_contracted: Whether some tool of it is treated like our own, as far as is known.
        homed: Users in whose home it is to run. A process is its user's own, and may list what it likes at
            any moment.
        fetching: Users whose process fetches files by links.
    """

    name: str
    transport: Callable[[User, ExecutionSettings, Reach | None], ServerTransport]
    is_command: bool = False
    contract: Wish = "auto"
    is_near: bool = False
    tier: Tier | None = None
    files: tuple[Path, ...] = ()
    hint: Callable[[str], str | None] = lambda _text: None
    least_connect_s: float = 0.0
    place: str = ""
    info: ServerInfo | None = None
    mode: str | None = None
    is_contracted: bool = False
    homed: set[str] = field(default_factory=set)
    fetching: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.contract == "full":
            self.is_contracted = True
            self.homed.add(EVERYBODY)

    def learn(self, tool: ToolSpec, whose: str, *, by_url: bool) -> None:
        """Record the needs of a user's process from a tool that it lists.

        Args:
            tool: The tool.
            whose: Name of the user.
            by_url: Whether it is given files by links.
        """
        if contract_of(self.contract, tool, {}, identity=tool.identity) == "guard":
            return
        self.is_contracted = True
        fetches = tool.takes_links or (tool.takes_files and by_url)
        if fetches:
            self.fetching.add(whose)
        if fetches or tool.takes_username or tool.takes_files:
            self.homed.add(whose)

    def wants_home(self, user: User) -> bool:
        """Return whether it is to run in the home of a user."""
        return self.is_command and not self.homed.isdisjoint((EVERYBODY, user.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Client facts that a server receives.

    Attributes:
        info: Its name and version, if it sent them.
        capabilities: What it can do.
    """

    info: mcp_types.Implementation | None = None
    capabilities: mcp_types.ClientCapabilities | None = None

    @property
    def key(self) -> str:
        """Return a key that is equal for clients that a server cannot distinguish."""
        parts = (
            part.model_dump_json(exclude_none=True) if part else "" for part in (self.info, self.capabilities)
        )
        return "\n".join(parts)

    @property
    def answers_questions(self) -> bool:
        """True if it answers any question of a server."""
        able = self.capabilities
        return able is not None and any((able.elicitation, able.roots, able.sampling))


async def contained(passing_on: Awaitable[None]) -> None:
    """Pass something on; a receiver that is gone is not a fault of the connection."""
    try:
        await passing_on
    except (*FAILURES, RunnerError) as error:
        log.info("notification not forwarded", extra={"problem": str(error)[:200]})


def is_modern(client: "Client[Any]") -> bool:
    """Return whether a connected client speaks a protocol without sessions."""
    return client.session.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS
