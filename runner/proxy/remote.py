"""A session with a remote MCP server: raw requests over FastMCP's client, which owns transport and handshake.

What comes back is the server's own result, key by key, and what goes there is the client's own: its name,
what it can do, its answers. The only module that knows how a client can fail.
"""

import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import Any

import anyio
import httpx2
import mcp_types
from fastmcp import Client
from fastmcp.client.transports import ClientTransport
from fastmcp.exceptions import FastMCPError
from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.contract.widget_dialects import CODE_CALL_META, WIDGET_CALL_META
from runner.errors import CallError, Code, RunnerError
from runner.homes.homes import HomeLease
from runner.protocol.internals.proxy import (
    Disconnected,
    HttpAnswer,
    NoAnswer,
    UnreadableAnswer,
    ask_remote,
    learn_tools,
    relaying_session,
)
from runner.protocol.internals.types import ProgressFnT
from runner.protocol.resource_tools import InvalidAnswer, Remote, RemoteError
from runner.proxy.repair import Fault, introduction, repaired
from runner.proxy.server_messages import NotificationPace, PacedMessages
from runner.system.turns import turn

__all__ = [
    "FAILURES",
    "Announced",
    "ConnectionLost",
    "HttpRefusal",
    "RemoteSession",
    "ServerTransport",
    "StartFailed",
    "client_for",
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

# These describe the connection of our own client, not the one to the server.
_OF_CONNECTIONS = (
    PROTOCOL_VERSION_META_KEY,
    CLIENT_INFO_META_KEY,
    CLIENT_CAPABILITIES_META_KEY,
    "progressToken",
    "toolcell/artifacts",
    CODE_CALL_META,
    WIDGET_CALL_META,
)
_CREDENTIALS = frozenset({401, 403, 407})
_LATER = frozenset({429, 503})
_FINAL = _CREDENTIALS | _LATER
_MOST_RETRY_S = 86_400
_WORDS_CHARS = 300
_OFFERED = {"elicitation/create": "elicitation", "roots/list": "roots", "sampling/createMessage": "sampling"}


class StartFailed(RuntimeError):
    """A server did not start, or is not an MCP server; the message has the reason."""


class ServerTransport(ClientTransport):
    """A transport to one server, which may be a command that runs in the home of its user.

    Attributes:
        session_class: Class of the session that it makes.
        home: The home, as long as the command runs in one.
        has_read_input: Whether the command, if it could not be connected to, had read its input before.
        why: What it wrote last then, with the option that would have helped.
    """

    session_class: type[ClientSession] = ClientSession
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


def _seconds(retry_after: str) -> int | None:
    """Return the seconds that a header `Retry-After` names, as a number or a date (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return min(int(retry_after), _MOST_RETRY_S)
    try:
        left = parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0, math.ceil(left)), _MOST_RETRY_S)


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
        return any(map(self.offers, _OFFERED))

    def offers(self, method: str) -> bool:
        """Return whether it answers questions of a kind."""
        return (
            self.capabilities is not None and getattr(self.capabilities, _OFFERED[method], None) is not None
        )

    def at(self, version: str) -> mcp_types.ClientCapabilities:
        """Return its capabilities in a version of the protocol."""
        able = self.capabilities or mcp_types.ClientCapabilities()
        foreign = "extensions" if version in HANDSHAKE_PROTOCOL_VERSIONS else "tasks"
        return able.model_copy(update={foreign: None})


async def contained(passing_on: Awaitable[None]) -> None:
    """Pass something on; a receiver that is gone is not a fault of the connection."""
    try:
        await passing_on
    except (*FAILURES, RunnerError) as error:
        log.info("notification not forwarded", extra={"problem": str(error)[:200]})


def client_for(
    transport: ServerTransport,
    *,
    mode: str,
    announced: Announced,
    on_question: Callable[[str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]],
    on_notification: Callable[[str, Mapping[str, Any] | None], Awaitable[None]],
    connect_s: float,
    found: Callable[[Fault], None] = lambda _fault: None,
    pace: NotificationPace | None = None,
) -> "Client[Any]":
    """Return a client that is to be connected.

    Args:
        transport: The way to the server.
        mode: How to agree on a protocol version, as FastMCP's client has it.
        announced: Name and capabilities that the server receives.
        on_question: Answers the server's requests.
        on_notification: Receives its notifications.
        connect_s: How long connecting may take.
        found: Receives faults of the server's introduction, which were repaired.
        pace: Rate limit of notifications; by default its own.
    """

    async def passed_on(method: str, params: Mapping[str, Any] | None) -> None:
        await contained(on_notification(method, params))

    def introduced(result: dict[str, Any]) -> dict[str, Any]:
        made, faults = introduction(result)
        for fault in faults:
            found(fault)
        return made

    transport.session_class = relaying_session(
        capabilities=announced.at,
        on_request=on_question,
        on_notify=passed_on,
        introduced=introduced,
        bounded=partial(PacedMessages, pace or NotificationPace()),
    )
    return Client(transport, mode=mode, client_info=announced.info, init_timeout=connect_s)


def is_modern(client: "Client[Any]") -> bool:
    """Return whether a connected client speaks a protocol without sessions."""
    return client.session.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS


@dataclass(frozen=True, slots=True)
class RemoteSession:
    """A connected client.

    Attributes:
        client: The client.
        answer_s: Seconds until a request without a watchdog fails.
        has_sessions: Whether our own client is of the handshake era: then log messages of all levels are
            requested, which a later era sends only on request.
        found: Hears of faults that were repaired.
    """

    client: "Client[Any]"
    answer_s: float = 30.0
    has_sessions: bool = False
    found: Callable[[Fault], None] = lambda _fault: None

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, progress: ProgressFnT | None = None
    ) -> dict[str, Any]:
        """Send a request and return the server's own result.

        Raises:
            MCPError: The server answered with an error.
            ConnectionLost: It did not answer.
            HttpRefusal: It answered with a status of HTTP.
            InvalidAnswer: Its answer breaks the protocol, and cannot be repaired.
        """
        sent = {key: value for key, value in (params or {}).items() if key != "_meta"}
        meta = {k: v for k, v in ((params or {}).get("_meta") or {}).items() if k not in _OF_CONNECTIONS}
        if self.has_sessions and is_modern(self.client):
            meta[LOG_LEVEL_META_KEY] = "debug"
        if meta:
            sent["_meta"] = meta
        # A call that is watched over ends by the ladder.
        limit_s = self.answer_s if progress is None else None
        session, http = self.client.session, HttpAnswer()
        try:
            answer = await ask_remote(session, method, sent, timeout_s=limit_s, progress=progress, http=http)
            # To read an answer, to check it and to use it each take a turn of the event loop.
            await turn()
            result, faults = await repaired(method, sent, answer, has_sessions=self.has_sessions)
            if method == "tools/list" and is_modern(self.client):
                learn_tools(session, result)
        except Disconnected as error:
            # The SDK's words for an event that is too long do not name the setting.
            cure = "; raise max_payload_bytes" if error.message.endswith("byte limit.") else ""
            raise ConnectionLost(f"{error.message.rstrip('.')}{cure}") from error
        except UnreadableAnswer as error:
            raise InvalidAnswer(f"its answer to {method} breaks the protocol: {error.message}") from error
        except MCPError as error:
            if http.in_session and http.status == HTTPStatus.NOT_FOUND and error.code != METHOD_NOT_FOUND:
                # By the protocol this status means that the session is over.
                raise ConnectionLost(error.message, was_refused=True) from error
            if http.in_session and http.status == HTTPStatus.BAD_REQUEST and await self._is_over():
                raise ConnectionLost(error.message) from error
            if method != "tools/call" and isinstance(error, NoAnswer) and error.code == METHOD_NOT_FOUND:
                # Without a session that status means an unknown method.
                raise
            refusal = HttpRefusal.of(http, None if isinstance(error, NoAnswer) else error)
            if refusal is not None:
                raise refusal from error
            raise
        except ValueError as error:
            raise InvalidAnswer(f"its answer to {method} breaks the protocol: {str(error)[:300]}") from error
        except FAILURES as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error
        for fault in faults:
            self.found(fault)
        await turn()
        return result

    async def _is_over(self) -> bool:
        """Return whether the server has forgotten the session; some answer with a bad request."""
        http = HttpAnswer()
        with suppress(*FAILURES):
            await ask_remote(
                self.client.session, "ping", {}, timeout_s=self.answer_s, progress=None, http=http
            )
        return http.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)

    @property
    def resources(self) -> Remote:
        """Return the server as a source of resources."""
        return Remote(self._answer)

    async def _answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self.request(method, params)
        except MCPError as error:
            raise RemoteError(error.error.message) from error
