"""A remote server: its description, its failures, its connection over HTTP, and the client's identity for it.

The length of a message over HTTP is bounded while it arrives. The SDK reads a whole answer before parsing it,
and its client decodes up to five nested content codings without yielding to the event loop: 400 KB became 2.5
GB. So no coding is requested, and none is accepted. A stream of events may last for days, so there each event
is bounded. It is read in small pieces, and the SDK's time for them is limited: beyond a burst of 0.1 s, each
second is followed by a pause of two.

Source: RFC 9110, 8.4 "Content-Encoding" and 12.5.3 "Accept-Encoding"; WHATWG HTML, "Server-sent events",
whose streams are UTF-8, and have the reconnection time in `retry`.
"""

import logging
import math
import re
import time
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio
import httpx2
import mcp_types
from fastmcp import Client
from fastmcp.client.transports import ClientTransport
from fastmcp.exceptions import FastMCPError
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.errors import CallError, Code, RunnerError
from runner.homes.homes import HomeLease
from runner.http.loopback import Loopback
from runner.protocol.internals.proxy import HTTP_ANSWER, HttpAnswer, sse_client
from runner.protocol.resource_tools import MOST_ITEMS, RemoteError
from runner.proxy.targets import Wish, contract_of
from runner.settings.execution import ExecutionSettings
from runner.system.now_and_then import NowAndThen
from runner.system.once import Once
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User
from sandbox.loop_share import LoopShare
from sandbox.probe.machine import Tier
from sandbox.token_bucket import TokenBucket

__all__ = [
    "EVERYBODY",
    "FAILURES",
    "Announced",
    "AnswerBound",
    "ConnectionLost",
    "HttpRefusal",
    "HttpServer",
    "Server",
    "ServerInfo",
    "ServerTransport",
    "ServerUnreachable",
    "contained",
    "is_modern",
    "most_message_bytes",
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
"""Exceptions that a client raises for faults of the server or connection, including malformed answers."""

_CREDENTIALS = frozenset({401, 403, 407})
_LATER = frozenset({429, 503})
_FINAL = _CREDENTIALS | _LATER
_MOST_RETRY_S = 86_400
_WORDS_CHARS = 300
# Streams of one client in a burst and a second: of notifications, and one for each resumed call. A server
# sets the milliseconds after which an ended stream is reopened, and the SDK retries for ever.
_STREAMS_AT_ONCE, _STREAMS_PER_S = 50, 10
# Of a stream. Small, since each line, even a blank one, takes a microsecond.
_PART_BYTES = 1 << 13
_LEAST_BYTES = 1 << 20
_IDENTITY = "identity"
_EVENTS = "text/event-stream"
# End of an event, for the line ends LF, CR and CRLF; the third alternative matches within two CRLF.
_BLANK_LINE = re.compile(rb"\n\n|\r\r|\n\r")
# Values of `Content-Encoding` that stand for no coding.
_NO_CODINGS = frozenset({"", _IDENTITY, "none", "utf-8"})
# The SDK's default: a stream may be silent for long between two events.
_TIMEOUT = httpx2.Timeout(30.0, read=300.0)


class ServerTransport(ClientTransport):
    """A transport to one server, which may be a command that runs in the home of its user.

    Attributes:
        session_class: Class of its session.
        home: The home, while the command runs in one.
        has_read_input: After a failed connection: whether the command had read its input.
        why: After a failed connection: the problem, its stderr tail and the option that would have helped.
        facts: After a lost connection to a command that ended: its `status` and `output`.
    """

    session_class: Callable[..., ClientSession] = ClientSession
    home: HomeLease | None = None
    has_read_input: bool = True
    why: str = ""
    facts: Mapping[str, str] = MappingProxyType({})

    async def last_words(self) -> str:
        """Return the stderr tail of a command whose connection was lost; empty if it is not known."""
        return ""

    def hold(self) -> AbstractAsyncContextManager[HomeLease | None]:
        """Lease the home for a call, since the command may exit and be replaced during the call."""
        return nullcontext()


class ConnectionLost(RemoteError):
    """The connection ended before the answer came.

    Attributes:
        was_refused: Whether the server is known not to have started the request.
        facts: Facts about the end of a command.
    """

    def __init__(
        self, problem: str, *, was_refused: bool = False, facts: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(problem)
        self.was_refused = was_refused
        self.facts = facts or {}


class HttpRefusal(RemoteError):
    """An HTTP response whose status is the reason for a missing answer.

    Attributes:
        status: The status.
        retry_after_s: The server's `Retry-After`, if any.
        is_final: Whether connecting in another mode would fail in the same way.
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
        """Return the refusal for a response; None if the response is not one.

        Args:
            http: The response.
            error: The JSON-RPC error in the response, if any.
        """
        if error is not None:
            return cls(http, error.message) if http.status in _FINAL else None
        return cls(http) if http.status >= HTTPStatus.BAD_REQUEST else None

    @property
    def failure(self) -> CallError:
        """The call error for this refusal."""
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
        refusal: The HTTP response that refused the connection, if any.
    """

    def __init__(self, problem: str, refusal: HttpRefusal | None = None) -> None:
        super().__init__(problem)
        self.refusal = refusal


def _seconds(retry_after: str) -> int | None:
    """Return the seconds of a `Retry-After` header, a number or a date (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return min(int(retry_after), _MOST_RETRY_S)
    try:
        left = parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0, math.ceil(left)), _MOST_RETRY_S)


EVERYBODY = ""
"""User name that stands for all users, for the tools that a server lists before it is first used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Description of the proxy: that of its one server, or a note that it has several.

    Attributes:
        identity: Its `Implementation`, without members too long to forward.
        instructions: Its instructions.
        capabilities: Its capabilities.
    """

    identity: Mapping[str, Any] = field(default_factory=lambda: {"name": "runner proxy"})
    instructions: str | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """One server, with the facts shared by its connections. An instance of this class cannot be started.

    Attributes:
        name: Its name.
        contract: Whether its tools are treated like our own.
        is_near: Whether it runs on this machine.
        tier: The isolation tier of a server that is our child process, which ends with its connection.
        files: The known files that it is started from.
        least_connect_s: Minimum of the connect timeout, in seconds, whatever the settings.
        place: Its URL or command, which is never sent to clients.
        problem: Reason that it cannot be started, if any.
        info: Its identity, once it has been connected to.
        mode: The connection mode that works, if the other one made the server exit; so only the first
            connection starts it twice.
        is_contracted: Whether a tool listed so far is treated like our own.
        homed: Users in whose home it is to run. Each user has a separate process, whose tool list may
            change at any time.
        fetching: Users whose process fetches files by links.
        for_models: Tools that were listed for models, at any time.
        loopback: The listener on this machine from which they are fetched.
    """

    name: str
    contract: Wish = "auto"
    is_near: bool = False
    tier: Tier | None = None
    files: tuple[Path, ...] = ()
    least_connect_s: float = 0.0
    place: str = ""
    problem: str = ""
    info: ServerInfo | None = None
    mode: str | None = None
    is_contracted: bool = False
    homed: set[str] = field(default_factory=set)
    fetching: set[str] = field(default_factory=set)
    for_models: set[str] = field(default_factory=set)
    loopback: Once[Loopback] = field(init=False)

    def __post_init__(self) -> None:
        if self.contract == "full":
            self.is_contracted = True
            self.homed.add(EVERYBODY)

    @property
    def is_command(self) -> bool:
        """True if it is our child process."""
        return self.tier is not None

    def transport(self, user: User, now: ExecutionSettings) -> ServerTransport:
        """Return a new transport to it for a user, with the settings in force now.

        Raises:
            ServerUnreachable: It cannot be started.
        """
        raise ServerUnreachable(f"the server {self.name} cannot be reached: {self.problem}")

    def hint(self, text: str) -> str | None:
        """Return the option that would have helped a confined server, from its error output."""
        return None

    def learn(self, tool: ToolSpec, whose: str, *, by_url: bool) -> None:
        """Record the needs of a user's process from a tool that it lists.

        Args:
            tool: The tool.
            whose: Name of the user.
            by_url: Whether files are passed to it as links.
        """
        if contract_of(self.contract, tool, {}, identity=tool.identity) == "guard":
            return
        self.is_contracted = True
        fetches = tool.takes_links or (tool.takes_files and by_url)
        if fetches:
            self.fetching.add(whose)
        if fetches or tool.takes_username or tool.takes_files:
            self.homed.add(whose)

    def only_pages(self, tool: ToolSpec) -> bool:
        """Return whether only widgets may call a listed tool: never, once it was listed for models.

        So a server cannot declare that for a tool which a model has just called.
        """
        is_full = len(self.for_models) >= MOST_ITEMS
        if not (tool.widgets.only_pages or is_full):
            self.for_models.add(tool.name)
        return tool.widgets.only_pages and not is_full and tool.name not in self.for_models

    def wants_home(self, user: User) -> bool:
        """Return whether it is to run in the home of a user."""
        return self.is_command and not self.homed.isdisjoint((EVERYBODY, user.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerBound:
    """Bounds for all answers of one server.

    Attributes:
        server: Name of the server.
        most_bytes: Size limit of a message.
        telling: Rate limit of log lines on longer messages.
        share: Share of the event loop for its streams.
    """

    server: str
    most_bytes: int
    telling: NowAndThen = field(default_factory=NowAndThen)
    share: LoopShare = field(default_factory=LoopShare)

    def client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """Return an HTTP client whose answers are bounded.

        Redirects are left to the SDK, which follows those within an origin.
        """
        wanted, pace = httpx2.Headers(headers), TokenBucket(at_once=_STREAMS_AT_ONCE, per_s=_STREAMS_PER_S)
        wanted["accept-encoding"] = _IDENTITY

        async def delay(request: httpx2.Request) -> None:
            if request.method == "GET" and (wait_s := pace.spend(1, now=time.monotonic())):
                await sleep(wait_s)

        hooks: dict[str, list[Any]] = {"request": [delay], "response": [self.hold]}
        return httpx2.AsyncClient(headers=wanted, timeout=timeout or _TIMEOUT, auth=auth, event_hooks=hooks)

    async def hold(self, response: httpx2.Response) -> None:
        """Bound an answer whose body has not been read.

        Reading beyond the bound raises `httpx2.StreamError`; for a stream of events `httpx2.SSEError`, which
        the SDK converts to an answer with its message.
        """
        answer, is_post = HTTP_ANSWER.get(), response.request.method == "POST"
        # The POST's response counts: additional and reopened streams answer no request.
        if answer is not None and (is_post or not answer.status):
            answer.status = response.status_code
            answer.retry_after = response.headers.get("retry-after", "")
            answer.in_session = "mcp-session-id" in response.request.headers
        request, kind = response.request, response.headers.get("content-type", "").lower()
        wants_stream = request.method != "DELETE" and _EVENTS in request.headers.get("accept", "")
        is_stream = wants_stream and response.is_success and kind.startswith(_EVENTS)
        named = response.headers.get_list("content-encoding", split_commas=True)
        codings = [name for each in named if (name := each.strip().lower()) not in _NO_CODINGS]
        if is_stream:
            # Whatever charset the header declares.
            response.encoding = "utf-8"
        response.headers.pop("content-encoding", None)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is asynchronous
        response.stream = _Counted(response.stream, self, codings, is_stream=is_stream)


def most_message_bytes(settings: ExecutionSettings) -> int:
    """Return the size limit of a server's message: that of the longest answer of any tool, or of a list."""
    return max(settings.widest_limits().frame_bytes, _LEAST_BYTES)


@dataclass(slots=True, eq=False)
class _Counted(httpx2.AsyncByteStream):
    """The body of an answer.

    Attributes:
        inner: The original body.
        bound: Bounds for all answers of the server.
        codings: Its content codings.
        is_stream: Whether it is read event by event.
    """

    inner: httpx2.AsyncByteStream
    bound: AnswerBound
    codings: list[str]
    is_stream: bool
    # Bytes so far of the current message (the whole body, or one event), and the last of them.
    _size: int = 0
    _last: bytes = b""

    def _problem(self, words: str) -> httpx2.SSEError | httpx2.StreamError:
        return httpx2.SSEError(words) if self.is_stream else httpx2.StreamError(words)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.codings:
            raise self._problem(
                f"an answer of {self.bound.server} has the content coding {', '.join(self.codings)!r}, "
                "which was not asked for; let it, or what stands before it, heed `Accept-Encoding: identity`"
            )
        async for piece in self.inner:
            if not self.is_stream:
                self._grow(len(piece))
                yield piece
                continue
            for start in range(0, len(piece), _PART_BYTES):
                part = piece[start : start + _PART_BYTES]
                turn = self.bound.share.turn()
                self._measure(part)
                yield part
                await turn.end()

    def _grow(self, count: int) -> None:
        self._size += count
        server, most_bytes = self.bound.server, self.bound.most_bytes
        if self._size <= most_bytes:
            return
        if times := self.bound.telling.due(now=time.monotonic()):
            facts = {"server": server, "most_bytes": most_bytes, "times": times}
            log.warning("server message too long", extra=facts)
        raise self._problem(
            f"a message of {server} has more than {most_bytes} bytes, the longest that is taken; "
            "ask it for less, or raise max_payload_bytes"
        )

    def _measure(self, part: bytes) -> None:
        """Count the bytes of the event that a part of a stream belongs to."""
        ends, *begins = _BLANK_LINE.split(self._last + part)
        self._grow(len(ends) - len(self._last))
        self._last = part[-1:]
        if begins:
            self._size = len(begins[-1])

    async def aclose(self) -> None:
        await self.inner.aclose()


class HttpTransport(ServerTransport):
    """Connection to one URL, over streamable HTTP or the older transport over SSE.

    FastMCP's transport does not limit bodies, and limits events, the usual form of results, to 1 MiB.
    """

    def __init__(self, url: str, headers: Mapping[str, str], bound: AnswerBound) -> None:
        self._url, self._headers, self._bound = url, dict(headers), bound
        # By convention, which FastMCP follows too, URLs of the older transport end in `/sse`.
        self.legacy_only = url.rstrip("/").endswith("/sse")

    @asynccontextmanager
    async def connect_session(self, **session_kwargs: Any) -> AsyncIterator[ClientSession]:
        """Connect, and yield the session, which ends with the connection."""
        async with AsyncExitStack() as stack:
            if self.legacy_only:
                streams = sse_client(self._url, self._headers, httpx_client_factory=self._bound.client)
            else:
                client = await stack.enter_async_context(self._bound.client(self._headers))
                streams = streamable_http_client(self._url, http_client=client, max_sse_event_size=None)
            read, write = await stack.enter_async_context(streams)
            yield await stack.enter_async_context(self.session_class(read, write, **session_kwargs))


@dataclass(slots=True, kw_only=True, eq=False)
class HttpServer(Server):
    """A server at a URL, which is its `place`.

    Attributes:
        headers: Headers of each request to it.
        bound: Bounds for its answers at start-up.
    """

    headers: Mapping[str, str]
    bound: AnswerBound

    def transport(self, user: User, now: ExecutionSettings) -> ServerTransport:
        """Return a new transport to it."""
        return HttpTransport(
            self.place, self.headers, replace(self.bound, most_bytes=most_message_bytes(now))
        )


class Announced(NamedTuple):
    """Name, version and capabilities that a client sent, if any, and that servers receive."""

    info: mcp_types.Implementation | None = None
    capabilities: mcp_types.ClientCapabilities | None = None

    @property
    def key(self) -> str:
        """Return a key that is equal for clients that a server cannot distinguish."""
        return "\n".join(part.model_dump_json(exclude_none=True) if part else "" for part in self)

    @property
    def answers_questions(self) -> bool:
        """True if the client supports any kind of question from a server."""
        able = self.capabilities
        return able is not None and any((able.elicitation, able.roots, able.sampling))


async def contained(passing_on: Awaitable[None]) -> None:
    """Forward a notification; only log a failure, since a lost receiver is not a fault of the connection."""
    try:
        await passing_on
    except (*FAILURES, RunnerError) as error:
        log.info("notification not forwarded", extra={"problem": str(error)[:200]})


def is_modern(client: "Client[Any]") -> bool:
    """Return whether a connected client speaks a protocol without sessions."""
    return client.session.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS
