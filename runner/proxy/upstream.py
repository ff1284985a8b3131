"""One connection to one remote server, on behalf of one client or user, with reconnection.

Unsolicited messages and requests of the server go to the latest caller, since the protocol does not name the
request they belong to. Without a caller, they go to the client's connection. After a failed connection, the
delay before the next attempt grows exponentially.

Source: MCP specification 2025-11-25, "Lifecycle", and 2026-07-28; requirements S4-37, S4-93.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any
from weakref import WeakValueDictionary

import anyio
import mcp_types
from fastmcp import Client
from mcp import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel

from runner.contract.widget_dialects import CODE_CALL_META, WIDGET_CALL_META
from runner.formats.json_walks import nests_deeper
from runner.homes.homes import HomeLease
from runner.output_guard.config import GuardConfig
from runner.protocol.internals.connection import connection_levels
from runner.protocol.internals.proxy import (
    HTTP_ANSWER,
    HttpAnswer,
    NoAnswer,
    Peer,
    RelayingSession,
    ask_remote,
    learn_tools,
    tell_remote,
)
from runner.protocol.internals.types import Connection, ProgressFnT
from runner.protocol.lines import IncomingLines
from runner.protocol.messages import check_meta
from runner.protocol.resource_tools import InvalidAnswer, Remote, RemoteError, RemoteResources, pages
from runner.proxy.answers import Faults, repaired
from runner.proxy.namespacing import Names, logged_by, question_of, questions_by, refusal_by
from runner.proxy.questions import ANSWER_S
from runner.proxy.remote import (
    FAILURES,
    Announced,
    ConnectionLost,
    HttpRefusal,
    Server,
    ServerTransport,
    ServerUnreachable,
    contained,
    is_modern,
)
from runner.proxy.stdio_process import TOO_MANY_REQUESTS
from runner.steps.listener import (
    CLIENT_REQUESTS,
    LIST_CHANGES,
    MESSAGE,
    PROGRESS,
    CallListener,
    ClientRefusal,
    log_message,
    too_deep,
)
from runner.system.backoff import BackOff
from runner.system.turns import in_turns, turn
from runner.toolset.call_services import CallServices
from runner.toolset.catalog import ToolSpec
from runner.users.events import LIST_CHANGED
from runner.users.identity import User
from sandbox.deadlines import Ladder
from sandbox.token_bucket import TokenBucket

__all__ = ["STATES_CHANGED", "Front", "NotificationPace", "Upstream", "WatchedListener"]

log = logging.getLogger(__name__)

STATES_CHANGED = "playground_servers"
"""Event for a change in the reachability of an upstream server."""


_SHORT_S = 2.0
# Minimum interval of reports of dropped notifications.
_REPORT_EVERY_S = 1.0
# All changes of a list within this time are reported as one.
_MOMENT_S = 0.1
# Time limit of a ping or discovery after a cancellation.
_PATIENCE_S = 2.0
# These describe the connection of our own client, not the one to the server.
_OF_CONNECTIONS = (
    mcp_types.PROTOCOL_VERSION_META_KEY,
    mcp_types.CLIENT_INFO_META_KEY,
    mcp_types.CLIENT_CAPABILITIES_META_KEY,
    "progressToken",
    "toolcell/artifacts",
    CODE_CALL_META,
    WIDGET_CALL_META,
)
# Error codes of the SDK for unreadable messages.
_UNREADABLE = (mcp_types.INVALID_REQUEST, mcp_types.PARSE_ERROR)
_PROBLEM_CHARS = 1000
# Messages of the SDK, and of FastMCP before its own, on a connection that ended without a known reason.
_CLOSED, _FAILED = "Connection closed", "Client failed to connect: "

_NO_CLIENT_S = 2.0
# Limits of messages from a server before its client is ready.
_MOST_EARLY, _MOST_EARLY_CHARS = 100, 64 * 1024
# A person answers one at a time, and each pending question uses memory here and in the client.
_MOST_QUESTIONS = 32
# Rate limit of refused requests, beyond which a server is disconnected.
_REFUSALS = partial(TokenBucket, at_once=256, per_s=10.0)
# Read-only and idempotent requests.
_READING = frozenset(
    {
        *("completion/complete", "logging/setLevel", "ping", "prompts/get", "prompts/list", "resources/list"),
        *("resources/read", "resources/subscribe", "resources/templates/list", "resources/unsubscribe"),
        *("server/discover", "tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tools/list"),
    }
)
_OF_TASKS = frozenset({"tasks/cancel", "tasks/get", "tasks/list", "tasks/result"})
_NEWS: Mapping[str, type[BaseModel]] = {
    "notifications/elicitation/complete": mcp_types.ElicitCompleteNotification,
    "notifications/tasks/status": mcp_types.TaskStatusNotification,
}


@dataclass(slots=True, kw_only=True, eq=False)
class NotificationPace(TokenBucket):
    """Rate limit for the notifications of one server. Time is an argument.

    Attributes:
        at_once: Notifications in a burst.
        per_s: Notifications a second after the burst.
        dropped: Number dropped since the last report.
    """

    at_once: float = 1000
    per_s: float = 100
    dropped: int = 0
    _sent_at: float = field(init=False, default=float("-inf"))

    def passes(self, now: float) -> bool:
        """Count one more notification; return whether to forward it."""
        passes = self.takes(1, now=now)
        self.dropped += not passes
        return passes

    def drop(self, count: int) -> None:
        """Count notifications that were dropped unread."""
        self.dropped += count

    def report(self, now: float, *, at_last: bool = False) -> int:
        """Return the number dropped if a report is due, else 0; `at_last` ignores the minimum interval."""
        if not self.dropped or (not at_last and now - self._sent_at < _REPORT_EVERY_S):
            return 0
        count, self.dropped, self._sent_at = self.dropped, 0, now
        return count


@dataclass(slots=True)
class Front:
    """A client with sessions, which can receive messages without a request in flight.

    Attributes:
        connection: Its connection. A server is started for a client during the client's handshake.
        is_ready: Set after the handshake.
        early: Notifications that the server sent before that.
    """

    connection: Connection
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    early: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send the client a request outside its own requests."""
        try:
            # Bounded to avoid a deadlock: during the handshake, the client waits for this server.
            async with asyncio.timeout(_NO_CLIENT_S):
                await self.is_ready.wait()
        except TimeoutError as error:
            message = "no client can be asked yet"
            raise MCPError(code=mcp_types.INVALID_REQUEST, message=message) from error
        return await self.connection.send_raw_request(method, params, {"timeout": ANSWER_S})

    async def notify(self, value: dict[str, Any]) -> None:
        """Send the client a notification; of log messages, only those of the levels that it requested."""
        if not self.is_ready.is_set():
            size = len(json.dumps(value, default=str))
            if len(self.early) < _MOST_EARLY and size <= _MOST_EARLY_CHARS:
                self.early.append(value)
            return
        method, params = value["method"], value["params"]
        message = log_message(params, connection_levels(self.connection)) if method == MESSAGE else params
        if message is not None:
            await self.connection.notify(method, message)

    async def begin(self) -> None:
        """Send the client the notifications that arrived before its handshake was complete."""
        self.is_ready.set()
        early, self.early = self.early, []
        for value in early:
            # The client may have disconnected.
            with contextlib.suppress(Exception):
                await self.notify(value)


@dataclass(slots=True, eq=False)
class WatchedListener:
    """A `CallListener` that restarts the idle limit on messages and pauses it on requests to the client."""

    listener: CallListener
    ladder: Ladder
    # Fair, so that notifications keep their order.
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def notify(self, value: dict[str, Any]) -> None:
        """Forward a notification of the server, and restart the idle limit."""
        self.ladder.progress(time.monotonic())
        async with self._sending:
            await self.listener.notify(value)

    async def flush(self) -> None:
        """Wait until every message has been forwarded: clients ignore messages after the answer."""
        async with self._sending:
            pass

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send the client a request; pause the idle limit, since a person may take longer."""
        self.ladder.pause(time.monotonic())
        try:
            return dict(await self.listener.ask(method, params))
        finally:
            self.ladder.resume(time.monotonic())


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Upstream(Peer):
    """A connection that is opened on demand.

    Attributes:
        server: The server.
        services: The proxy's services for all connections.
        names: The names of all servers of its client.
        config: Settings of the output guard.
        user: The user, to whose session its events are published.
        front: The client, if its protocol has sessions.
        announced: Name and capabilities of the client that the server receives.
        resources: Its resources.
        specs: The tools by name, once known.
        subscribed: The number of subscribers of each resource.
        tasks: The name of the tool for each MCP task id of the server.
    """

    server: Server
    services: CallServices
    names: Names
    config: GuardConfig
    user: User
    front: Front | None
    announced: Announced
    resources: RemoteResources = field(init=False)
    backoff: BackOff = field(default_factory=BackOff)
    used_at: float = field(default_factory=time.monotonic)
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    subscribed: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, str] = field(default_factory=dict)
    _checking: "asyncio.Task[None] | None" = None
    _unreachable: ServerUnreachable | None = None
    _faults: Faults = field(init=False)
    _asking: list[WatchedListener] = field(default_factory=list)
    _questions: int = 0
    _refusals: TokenBucket = field(default_factory=_REFUSALS)
    _ending: "asyncio.Task[None] | None" = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _subscribing: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _client: "Client[Any] | None" = None
    _way: ServerTransport | None = None
    _knows_all: bool = False
    _changes: int = 0
    _listening: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    _reporting_changes: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _pace: NotificationPace = field(default_factory=NotificationPace)

    def __post_init__(self) -> None:
        self.resources = RemoteResources(server=self.name, config=self.config, publish=self._publish)
        self._faults = Faults(self.name)

    @property
    def name(self) -> str:
        """Name of the server."""
        return self.server.name

    @property
    def is_alone(self) -> bool:
        """True if its client has no other server, so that ids need no translation."""
        return not self.names.prefixed

    @property
    def busy(self) -> bool:
        """True if a request is in flight."""
        return bool(self._asking)

    @property
    def in_use(self) -> bool:
        """True if a request is in flight, or a resource has a subscriber."""
        return self.busy or bool(self.subscribed)

    @property
    def _receiver(self) -> "WatchedListener | Front | None":
        """The latest caller; without one, the client, if it has sessions."""
        return self._asking[-1] if self._asking else self.front

    @property
    def is_connected(self) -> bool:
        """True if there is a connection that is not known to be lost."""
        return self._client is not None and self._client.is_connected()

    def held_home(self) -> AbstractAsyncContextManager[HomeLease | None]:
        """Lease that home for a call."""
        return nullcontext() if self._way is None else self._way.hold()

    async def connected(self) -> "Client[Any]":
        """Return the connected client; connect it first if necessary.

        Raises:
            ServerUnreachable: The server cannot be reached, or the back-off delay has not passed.
        """
        async with self._lock:
            if self._client is not None and self.is_connected:
                return self._client
            await self._close()
            wait_s = self.backoff.wait_s(time.monotonic())
            if wait_s > _SHORT_S:
                refusal = self._unreachable.refusal if self._unreachable else None
                raise ServerUnreachable(f"{self._unreachable}; next attempt in {wait_s:.0f} s", refusal)
            await asyncio.sleep(wait_s)
            try:
                self._client = await self._connect()
            except ServerUnreachable as error:
                self.backoff.failed(time.monotonic())
                self._unreachable = error
                self._noted(str(error))
                raise
            self.backoff.worked()
            self._noted("")
            try:
                await self._resume(self._client)
            except BaseException:
                # Otherwise, one cancelled request would prevent the renewal of others' subscriptions.
                await self._close()
                raise
            return self._client

    async def request(
        self, method: str, params: Mapping[str, Any], watched: WatchedListener | None = None
    ) -> dict[str, Any]:
        """Send a request; connect first if there is no connection.

        After a lost connection, the request is sent again over a new one, if the server had not started it or
        if it is idempotent: read requests are, and tools that declare it.

        Raises:
            MCPError: The server answered with an error.
            RemoteError: The server did not answer, or its answer breaks the protocol.
        """

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if watched is not None and self._pace.passes(time.monotonic()):
                reported = {"progress": progress, "total": total, "message": message}
                await contained(watched.notify({"method": PROGRESS, "params": reported}))

        for is_last in (False, True):
            self.used_at = time.monotonic()
            client = await self.connected()
            if watched is not None:
                self._asking.append(watched)
            try:
                result = await self._answer(client, method, params, report if watched else None)
            except MCPError as error:
                if self.is_alone:
                    raise
                raise refusal_by(self.name, error) from error
            except ConnectionLost as error:
                had_too_many, way = self._ending is not None, self._way
                # Another request may have noticed the loss first, and reconnected.
                await self.drop(client)
                # Over stdio, the error already contains this reason.
                if had_too_many and TOO_MANY_REQUESTS not in str(error):
                    raise ConnectionLost(f"{error}: {TOO_MANY_REQUESTS}") from error
                spec = self.specs.get(str(params.get("name"))) if method == "tools/call" else None
                may_repeat = method in _READING or (spec is not None and spec.is_idempotent)
                if is_last or had_too_many or not (error.was_refused or may_repeat):
                    why, problem = "" if way is None else await way.last_words(), str(error)
                    facts = {} if way is None else way.facts
                    if facts and problem == _CLOSED:
                        problem = f"the command ended ({facts['status']}), and is started at the next call"
                    problem = "; ".join(filter(None, (problem, why)))
                    raise ConnectionLost(problem, was_refused=error.was_refused, facts=facts) from error
            else:
                # Before the answer, the client receives the number of dropped messages.
                await self._tell_of_dropped(self._pace.report(time.monotonic(), at_last=True))
                return result if self.is_alone else questions_by(self.name, result)
            finally:
                if watched is not None:
                    self._asking.remove(watched)
        raise AssertionError("unreachable")

    async def _answer(
        self,
        client: "Client[Any]",
        method: str,
        params: Mapping[str, Any],
        progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """Send a request over a connection, and return the server's repaired result.

        Raises:
            MCPError: The server answered with an error.
            ConnectionLost: The server did not answer.
            HttpRefusal: The server answered with an HTTP error status.
            InvalidAnswer: The server's answer breaks the protocol, and cannot be repaired.
        """
        has_sessions = self.front is not None
        sent = {key: value for key, value in params.items() if key != "_meta"}
        meta = {k: v for k, v in (params.get("_meta") or {}).items() if k not in _OF_CONNECTIONS}
        if has_sessions and is_modern(client):
            # All log levels are requested; those that the client does not want are dropped later.
            meta[mcp_types.LOG_LEVEL_META_KEY] = "debug"
        if meta:
            sent["_meta"] = meta
        # The ladder limits the time of a watched call.
        limit_s = self.services.settings.idle_timeout_s if progress is None else None
        session, http = client.session, HttpAnswer()
        try:
            answer = await ask_remote(session, method, sent, timeout_s=limit_s, progress=progress, http=http)
            # Reading, repairing and using an answer each get a turn of the event loop.
            await turn()
            result = await repaired(method, sent, answer, self._faults, has_sessions=has_sessions)
            if method == "tools/list" and is_modern(client):
                learn_tools(session, result)
        except MCPError as error:
            status, has_answer = http.status, not isinstance(error, NoAnswer)
            is_unknown = error.code == mcp_types.METHOD_NOT_FOUND
            if not has_answer and error.code == mcp_types.CONNECTION_CLOSED:
                raise ConnectionLost(error.message.rstrip(".")) from error
            if not has_answer and error.code in _UNREADABLE and status < HTTPStatus.BAD_REQUEST:
                raise InvalidAnswer(f"its answer to {method} cannot be read: {error.message}") from error
            if http.in_session and status == HTTPStatus.NOT_FOUND and not is_unknown:
                # In the protocol, 404 means that the session has ended.
                raise ConnectionLost(error.message, was_refused=True) from error
            if http.in_session and status == HTTPStatus.BAD_REQUEST and await self._is_over(session):
                raise ConnectionLost(error.message) from error
            # Without a session, 404 means an unknown method.
            if has_answer or not is_unknown or method == "tools/call":
                refusal = HttpRefusal.of(http, error if has_answer else None)
                if refusal is not None:
                    raise refusal from error
            raise
        except ValueError as error:
            raise InvalidAnswer(f"its answer to {method} breaks the protocol: {str(error)[:300]}") from error
        except FAILURES as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error
        await turn()
        return result

    async def _is_over(self, session: ClientSession) -> bool:
        """Return whether the session has ended; some servers answer 400 then."""
        http, limit_s = HttpAnswer(), self.services.settings.idle_timeout_s
        with contextlib.suppress(*FAILURES):
            await ask_remote(session, "ping", {}, timeout_s=limit_s, progress=None, http=http)
        return http.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)

    @property
    def remote(self) -> Remote:
        """The server as a source of resources."""
        return Remote(self.request)

    async def pages(self, method: str, key: str) -> list[Any]:
        """Return the items from all pages of a list."""
        return await pages(self.request, method, key, server=self.name)

    async def spec(self, tool: str) -> ToolSpec | None:
        """Return the server's description of a tool, or None if the tool is not listed."""
        if not self._knows_all:
            # The call is still sent without a list.
            with contextlib.suppress(MCPError, RemoteError):
                changes = self._changes
                self.specs = await self.learn(await self.pages("tools/list", "tools"))
                self._knows_all = changes == self._changes
        return self.specs.get(tool)

    async def learn(self, items: Iterable[Any]) -> dict[str, ToolSpec]:
        """Record the needs of tools from the server's current list, and return their descriptions."""
        settings, listed = self.services.settings, dict[str, ToolSpec]()
        async for item in in_turns(items):
            # A tool with an unreadable description is called like an unlisted one.
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                spec = ToolSpec.of(item, identity=settings.username_parameter)
                listed[spec.name] = spec
                # A server may change its list without a notification.
                self._knows_all &= self.specs.get(spec.name) == spec
                may_destroy = spec.widgets.may_destroy
                self.services.approvals.is_destructive(self.name, spec.name, now=may_destroy)
                self.server.only_pages(spec)
                self.server.learn(spec, self.user.name, by_url=settings.file_delivery == "url")
        return listed

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification of the client to the server, if it is connected."""
        # Other notifications contain an id of the client, which is not forwarded with several servers.
        if self._client is not None and (self.is_alone or method == "notifications/roots/list_changed"):
            await tell_remote(self._client.session, method, params)

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource; the subscription is renewed after a reconnection."""
        # Of several concurrent calls, only the first opens a stream.
        lock = self._subscribing.setdefault(uri, asyncio.Lock())
        async with lock:
            client = await self.connected()
            if not self.subscribed[uri]:
                try:
                    if is_modern(client):
                        await self._listen(client, {"resource_subscriptions": [uri]}, uri)
                    else:
                        await self._answer(client, "resources/subscribe", {"uri": uri})
                except BaseException:
                    self._stop_listening(uri)
                    raise
            self.subscribed[uri] += 1

    async def unsubscribe(self, uri: str) -> None:
        """Remove one subscription; unsubscribe from the server with the last."""
        self.subscribed[uri] -= 1
        if self.subscribed[uri] > 0:
            return
        del self.subscribed[uri]
        self._stop_listening(uri)
        if self._client is not None and not is_modern(self._client):
            await self.request("resources/unsubscribe", {"uri": uri})

    async def drop(self, client: "Client[Any] | None" = None) -> None:
        """End the connection; the next request opens a new one.

        Args:
            client: The client to end, if another request has not replaced it; None for any.
        """
        if client is not None and client is not self._client:
            return
        if self._checking is not None:
            self._checking.cancel()
        async with self._lock:
            if client is None or client is self._client:
                await self._close()

    async def move_home(self) -> None:
        """End an idle command that should run in its user's home but does not; it restarts there."""
        is_there = self._way is not None and self._way.home is not None
        if self.server.wants_home(self.user) and not is_there and not self.busy:
            await self.drop()

    def check_after_cancel(self) -> None:
        """Check in the background whether a command responds after a cancelled call, and end it if not.

        Requests wait for the check. A command that continues the call without reading input would make the
        next call time out. One that responds keeps its process, and so its state.
        """
        client = self._client
        if client is None or self.busy or self.server.tier is None:
            return

        async def check() -> None:
            async with self._lock:
                if client is not self._client:
                    return
                with anyio.move_on_after(_PATIENCE_S) as limit, contextlib.suppress(MCPError, RemoteError):
                    await self._answer(client, "server/discover" if is_modern(client) else "ping", {})
                if limit.cancelled_caught:
                    log.warning("server stopped after cancellation", extra={"server": self.name})
                    await self._close()

        self._checking = asyncio.create_task(check())

    async def _connect(self) -> "Client[Any]":
        """Connect in the mode that fits the client, else in the other mode.

        Many servers exit on a first message that is not `initialize`; some do not support `initialize`.
        """
        problems: list[str] = []
        refusal: HttpRefusal | None = None
        self._refusals, self._ending = _REFUSALS(), None
        # `auto` sends `server/discover` first, `legacy` only `initialize`.
        preferred = ("auto", "legacy") if self.front is None else ("legacy", "auto")
        known = self.server.mode
        connect_s = max(self.services.settings.load_timeout_s, self.server.least_connect_s)
        for mode in sorted(preferred, key=lambda mode: known not in (None, mode)):
            way = self.server.transport(self.user, self.services.settings)
            way.session_class = partial(RelayingSession, self)
            started_at, http = time.monotonic(), HttpAnswer()
            noting = HTTP_ANSWER.set(http)
            try:
                client = Client(way, mode=mode, client_info=self.announced.info, init_timeout=connect_s)
                await self._stack.enter_async_context(client)
            except FAILURES as error:
                refusal = HttpRefusal.of(http)
                why = str(refusal or error).removeprefix(_FAILED) or type(error).__name__
                problem = "; ".join(filter(None, (why, way.why)))
                if refusal is not None and refusal.is_final:
                    problems = [problem]
                    break
                is_late = time.monotonic() - started_at >= connect_s
                if is_late:
                    late = f"no answer within {connect_s:g} s (raise load_timeout_s)"
                    problem = ": ".join(filter(None, (late, way.why)))
                problems.append(problem)
                # Mode `auto` has tried both handshakes within that time. A server that has not read its input
                # cannot start, and would not read the other handshake either.
                if (is_late and mode == "auto") or not way.has_read_input:
                    break
                continue
            finally:
                HTTP_ANSWER.reset(noting)
            version = client.session.protocol_version
            log.info("server connected", extra={"server": self.name, "protocol": version})
            falls_back = mode == "auto" and not is_modern(client)
            if self.server.tier is not None and (problems or falls_back):
                # A server that does not answer `server/discover` would take ten seconds at each start.
                self.server.mode = mode if problems else "legacy"
            self._way = way
            return client
        # If a server cannot start at all, both attempts have an equal error.
        problem = "; in the other handshake: ".join(dict.fromkeys(each[:_PROBLEM_CHARS] for each in problems))
        raise ServerUnreachable(f"the server {self.name} cannot be reached: {problem}", refusal)

    def capabilities(self, version: str) -> mcp_types.ClientCapabilities:
        """Return the client's capabilities in a version of the protocol."""
        able = self.announced.capabilities or mcp_types.ClientCapabilities()
        foreign = ["extensions" if version in HANDSHAKE_PROTOCOL_VERSIONS else "tasks"]
        # One of several servers could name another's tasks.
        return able.model_copy(update=dict.fromkeys(foreign if self.is_alone else [*foreign, "tasks"]))

    def opened(self, messages: Any) -> None:
        """Drop lines above the rate limit unparsed, since parsing a notification takes longer."""
        if isinstance(messages, IncomingLines):
            messages.sheds = lambda: not self._pace.has(1, now=time.monotonic())
            messages.shed = self._pace.drop

    def _noted(self, why: str) -> None:
        """Record whether the server could be reached, and notify pages if that changed."""
        problems = self.services.problems
        if problems.get(self.name, "") == why:
            return
        problems.pop(self.name, None)
        if why:
            problems[self.name] = why
            log.warning("server cannot be reached", extra={"server": self.name, "problem": why})
        self.services.events.publish_to_all({"type": STATES_CHANGED})

    async def _resume(self, client: "Client[Any]") -> None:
        able = client.session.server_capabilities or mcp_types.ServerCapabilities()
        if is_modern(client):
            parts = {"tools": able.tools, "prompts": able.prompts, "resources": able.resources}
            changing = [f"{name}_list_changed" for name, part in parts.items() if part and part.list_changed]
            if changing:
                self._listen(client, dict.fromkeys(changing, True))
        elif able.logging is not None:
            with contextlib.suppress(MCPError, RemoteError):
                await self._answer(client, "logging/setLevel", {"level": "debug"})
        for uri in list(self.subscribed):
            if is_modern(client):
                # Not awaited: all requests wait for `_resume`.
                self._listen(client, {"resource_subscriptions": [uri]}, uri)
            elif uri in self.subscribed:
                with contextlib.suppress(MCPError, RemoteError):
                    await self._answer(client, "resources/subscribe", {"uri": uri})
            # The resource may have changed while disconnected.
            self.resources.updated(uri)

    def _listen(
        self, client: "Client[Any]", wanted: Mapping[str, Any], uri: str = ""
    ) -> "asyncio.Future[None]":
        """Start receiving changes from a stateless server; return a future of its confirmation."""
        self._stop_listening(uri)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # asyncio logs an exception that is never retrieved.
        started.add_done_callback(lambda started: started.cancelled() or started.exception())
        task = self._listening[uri] = asyncio.create_task(self._receive(client, wanted, uri, started))

        def ended(_task: "asyncio.Task[None]") -> None:
            if not started.done():
                started.set_exception(ConnectionLost("it was closed"))

        task.add_done_callback(ended)
        return started

    def _stop_listening(self, uri: str) -> None:
        task = self._listening.pop(uri, None)
        if task is not None:
            task.cancel()

    async def _receive(
        self, client: "Client[Any]", wanted: Mapping[str, Any], uri: str, started: "asyncio.Future[None]"
    ) -> None:
        """Keep a stream of a stateless server open; its events arrive through `on_notification`."""
        backoff = BackOff()
        while True:
            try:
                limit_s = self.services.settings.idle_timeout_s
                async with asyncio.timeout(limit_s) as limit, listen(client.session, **wanted) as events:
                    # Once confirmed, a stream has no time limit.
                    limit.reschedule(None)
                    is_first = not started.done()
                    if is_first:
                        started.set_result(None)
                    # Changes may have been missed since a lost connection.
                    if uri in self.subscribed:
                        self.resources.updated(uri)
                    elif not (uri or is_first):
                        self._lists_changed(*LIST_CHANGES)
                    backoff.worked()
                    async for _event in events:
                        pass
            except (*FAILURES, SubscriptionLost) as error:
                if not started.done():
                    problem = f"it did not confirm a subscription: {str(error) or type(error).__name__}"
                    started.set_exception(error if isinstance(error, MCPError) else ConnectionLost(problem))
                    # Only the streams of lists and earlier subscriptions are retried: no caller would do so.
                    if isinstance(error, MCPError) or (uri and uri not in self.subscribed):
                        return
            backoff.failed(time.monotonic())
            await asyncio.sleep(backoff.wait_s(time.monotonic()))

    async def _close(self) -> None:
        self._client = self._way = None
        for uri in [*self._listening]:
            self._stop_listening(uri)
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        except FAILURES as error:
            log.info("server connection failed", extra={"server": self.name, "problem": str(error)[:200]})

    async def on_request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Forward a request of the server to the client, and return the answer."""
        check_meta(params)
        if method == "ping":
            return {}
        if method not in CLIENT_REQUESTS and not (self.is_alone and method in _OF_TASKS):
            raise MCPError(code=mcp_types.METHOD_NOT_FOUND, message="Method not found", data=method)
        if nests_deeper(params):
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=too_deep(method))
        if self._questions >= _MOST_QUESTIONS:
            message = f"{_MOST_QUESTIONS} requests wait for the client's answer; ask again after one of them"
            if not self._refusals.takes(1, now=time.monotonic()) and self._ending is None:
                # Further refusals would delay other connections.
                log.warning("connection ended: too many requests", extra={"server": self.name})
                self._ending = asyncio.create_task(self.drop())
            raise MCPError(code=mcp_types.INVALID_REQUEST, message=message)
        receiver = self._receiver
        if receiver is None:
            message = "no request of the client is under way during which it could be asked"
            raise MCPError(code=mcp_types.INVALID_REQUEST, message=message)
        self._questions += 1
        try:
            question = dict(params or {}) if self.is_alone else question_of(self.name, params or {})
            return await receiver.ask(method, question)
        except ClientRefusal as refusal:
            raise MCPError(code=refusal.code, message=str(refusal)) from refusal
        finally:
            self._questions -= 1

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Forward a notification of the server; progress also reaches its request, which rate limits it."""
        if method == PROGRESS or self._pace.passes(time.monotonic()):
            await contained(self._pass_on(method, params))

    async def _pass_on(self, method: str, params: Mapping[str, Any] | None) -> None:
        message = dict(params or {})
        await self._tell_of_dropped(self._pace.report(time.monotonic()))
        # With several servers, each may report only on its own tasks and questions.
        is_own = self.is_alone or message.get("taskId", "") in ("", *self.tasks)
        if method == MESSAGE:
            await self._log(message if self.is_alone else logged_by(self.name, message))
        elif method == "notifications/resources/updated":
            self.resources.updated(str(message.get("uri", "")))
        elif method in LIST_CHANGES:
            self._lists_changed(method)
        elif self.front is not None and is_own and _is_news(method, message):
            news = message if self.is_alone else question_of(self.name, message)
            await self.front.notify({"method": method, "params": news})

    async def _log(self, message: Mapping[str, Any]) -> None:
        if self._receiver is not None:
            await self._receiver.notify({"method": MESSAGE, "params": message})

    async def _tell_of_dropped(self, count: int) -> None:
        """Notify the client of dropped notifications, and of lists that may have changed."""
        if not count:
            return
        log.warning("notifications dropped", extra={"server": self.name, "count": count})
        words = f"{count} notifications of {self.name} were dropped: there were more than could be passed on"
        await self._log({"level": "warning", "logger": "runner", "data": {"msg": words, "extra": None}})
        self._lists_changed(*LIST_CHANGES)
        for uri in self.subscribed:
            self.resources.updated(uri)

    def _lists_changed(self, *methods: str) -> None:
        """Report changed lists; changes of a list within `_MOMENT_S` are reported as one."""
        self._knows_all, self.specs = False, {}
        self._changes += 1

        async def report(method: str) -> None:
            await asyncio.sleep(_MOMENT_S)
            del self._reporting_changes[method]
            if self.front is not None:
                await contained(self.front.notify({"method": method, "params": {}}))
            else:
                self._publish({"type": LIST_CHANGED, "list": method.split("/")[1]})

        for method in methods:
            if method not in self._reporting_changes:
                self._reporting_changes[method] = asyncio.create_task(report(method))

    def _publish(self, event: Mapping[str, Any]) -> None:
        outside = {"uri": self.names.uri_outside(self.name, str(event["uri"]))} if "uri" in event else {}
        self.services.events.publish({**event, **outside}, user=self.user.segment, session=self.user.session)


def _is_news(method: str, params: Mapping[str, Any]) -> bool:
    """Return whether a notification is known and well-formed; clients fail on others with tracebacks."""
    if method not in _NEWS or nests_deeper(params):
        return False
    with contextlib.suppress(ValueError):
        _NEWS[method].model_validate({"method": method, "params": dict(params)}, by_name=False)
        return True
    return False
