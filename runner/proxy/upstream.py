"""One connection to one remote server, on behalf of one client or user: kept, lost, and made again.

Unsolicited messages and requests of the server go to the latest caller, since the protocol does not name the
request they belong to, and without a caller to the client's connection. After a failure to connect, the next
attempt backs off exponentially.

Source: MCP specification 2025-11-25, "Lifecycle", and 2026-07-28; requirements S4-37, S4-93.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
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
    Disconnected,
    HttpAnswer,
    NoAnswer,
    Peer,
    RelayingSession,
    UnreadableAnswer,
    ask_remote,
    learn_tools,
    tell_remote,
)
from runner.protocol.internals.types import Connection, ProgressFnT, SessionMessage
from runner.protocol.lines import IncomingLines
from runner.protocol.messages import check_meta
from runner.protocol.resource_tools import InvalidAnswer, Remote, RemoteError, RemoteResources, pages
from runner.proxy.deadline_watch import WatchedListener
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
from runner.proxy.repair import Fault, introduction, repaired
from runner.proxy.stdio_process import TOO_MANY_REQUESTS
from runner.steps.listener import (
    CLIENT_REQUESTS,
    LIST_CHANGES,
    MESSAGE,
    PROGRESS,
    ClientRefusal,
    log_message,
    too_deep,
)
from runner.steps.request import file_delivery_of
from runner.system.backoff import BackOff
from runner.system.turns import in_turns, turn
from runner.toolset.call_services import CallServices
from runner.toolset.catalog import ToolSpec
from runner.users.events import LIST_CHANGED
from runner.users.identity import User
from sandbox.token_bucket import TokenBucket

__all__ = ["STATES_CHANGED", "Front", "NotificationPace", "PacedMessages", "Upstream"]

log = logging.getLogger(__name__)

STATES_CHANGED = "playground_servers"
"""The event that a server behind this one can be reached again, or no longer."""


_SHORT_S = 2.0
# Between two reports of dropped notifications.
_REPORT_EVERY_S = 1.0
# Within it, changes of a list are reported once.
_MOMENT_S = 0.1
# For an answer to what costs a server nothing, after it was asked to stop.
_PATIENCE_S = 2.0
_TASKS = 1000
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
_PROBLEM_CHARS = 1000
_MOST_FAULTS = 100

_NO_CLIENT_S = 2.0
# Messages of a server before its client is there.
_MOST_EARLY, _MOST_EARLY_CHARS = 100, 64 * 1024
# A person answers one after the other, and each that waits is kept here and at the client.
_MOST_QUESTIONS = 32
# So many refusals a server may need: at once, and a second.
_REFUSALS = partial(TokenBucket, at_once=256, per_s=10.0)
# Requests that change nothing at the server, or the same thing when they are done twice.
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
    """Rate limit of the notifications of one server. Time is an argument.

    Attributes:
        at_once: Notifications that may come one after the other.
        per_s: Notifications a second afterwards.
        dropped: Number dropped since the last report.
    """

    at_once: float = 1000
    per_s: float = 100
    dropped: int = 0
    _sent_at: float = field(init=False, default=float("-inf"))

    def passes(self, now: float) -> bool:
        """Return whether one more is passed on, and count it either way."""
        passes = self.takes(1, now=now)
        self.dropped += not passes
        return passes

    def report(self, now: float, *, at_last: bool = False) -> int:
        """Return the number to report now; `at_last` also where one was reported a moment ago."""
        if not self.dropped or (not at_last and now - self._sent_at < _REPORT_EVERY_S):
            return 0
        count, self.dropped, self._sent_at = self.dropped, 0, now
        return count


class PacedMessages:
    """Messages of a server without the notifications above the rate limit. A `ReadStream` of the SDK.

    Args:
        pace: The rate limit.
        inner: The messages as they come.
    """

    def __init__(self, pace: NotificationPace, inner: Any) -> None:
        self._pace = pace
        self._inner = inner
        if isinstance(inner, IncomingLines):
            # To read a message takes longer than to drop it.
            inner.sheds = lambda: not pace.has(1, now=time.monotonic())
            inner.shed = self._shed

    def __getattr__(self, name: str) -> Any:
        # The rest of a stream; `last_context`, of the last message's sender; `problem`, if we ended it.
        return getattr(self._inner, name)

    def _shed(self, count: int) -> None:
        self._pace.dropped += count

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._inner:
            message = item.message if isinstance(item, SessionMessage) else None
            if (
                not isinstance(message, mcp_types.JSONRPCNotification)
                or message.method == "notifications/cancelled"
                or self._pace.passes(time.monotonic())
            ):
                yield item

    async def __aenter__(self) -> "PacedMessages":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._inner.__aexit__(*raised)


@dataclass(slots=True)
class Front:
    """A client with sessions, which can be spoken to while none of its requests is under way.

    Attributes:
        connection: Its connection. A server is started for a client during its handshake.
        is_ready: Set after that.
        early: What the server sent before.
    """

    connection: Connection
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    early: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send the client a request, outside of its own requests."""
        try:
            # Meanwhile the client waits for this server, which would wait for the client.
            async with asyncio.timeout(_NO_CLIENT_S):
                await self.is_ready.wait()
        except TimeoutError as error:
            message = "no client can be asked yet"
            raise MCPError(code=mcp_types.INVALID_REQUEST, message=message) from error
        return await self.connection.send_raw_request(method, params, {"timeout": ANSWER_S})

    async def notify(self, value: dict[str, Any]) -> None:
        """Send the client a notification; log messages only of the levels that it asked for."""
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
        """Send the client the notifications that came before its handshake was complete."""
        self.is_ready.set()
        early, self.early = self.early, []
        for value in early:
            # A client that is gone receives none of them.
            with contextlib.suppress(Exception):
                await self.notify(value)


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Upstream(Peer):
    """A connection that is made when it is needed.

    Attributes:
        server: The server.
        services: What the proxy has for all connections.
        names: The names of all servers of its client.
        config: Settings of the output guard.
        user: The user, in whose session its events are.
        transport: Makes the way to it, a new one for each connection.
        front: The client, where its protocol has sessions.
        announced: Name and capabilities of the client that the server receives.
        resources: Its resources.
        specs: The tools, once known.
        subscribed: How many listen to each resource.
        tasks: The tool of each task that the server has begun.
    """

    server: Server
    services: CallServices
    names: Names
    config: GuardConfig
    user: User
    transport: Callable[[], ServerTransport]
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
    _faults: set[Fault] = field(default_factory=set)
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

    @property
    def name(self) -> str:
        """Name of the server."""
        return self.server.name

    @property
    def is_alone(self) -> bool:
        """True if its client has no other server: then the client's ids need no translation."""
        return not self.names.prefixed

    @property
    def busy(self) -> bool:
        """True if a request is under way."""
        return bool(self._asking)

    @property
    def in_use(self) -> bool:
        """True if a request is in flight, or a resource has a subscriber."""
        return self.busy or bool(self.subscribed)

    @property
    def _receiver(self) -> "WatchedListener | Front | None":
        """The last caller; without one the client, where it has a connection."""
        return self._asking[-1] if self._asking else self.front

    @property
    def is_connected(self) -> bool:
        """True if there is a connection, as far as anybody has noticed."""
        return self._client is not None and self._client.is_connected()

    @property
    def home(self) -> HomeLease | None:
        """The home of its user in which the server runs, if it is a command that has one."""
        return self._way.home if self._way is not None else None

    def held_home(self) -> AbstractAsyncContextManager[HomeLease | None]:
        """Hold that home for a call."""
        return nullcontext() if self._way is None else self._way.hold()

    async def connected(self) -> "Client[Any]":
        """Return the client, connected.

        Raises:
            ServerUnreachable: The server cannot be reached, or it is too early to try again.
        """
        async with self._lock:
            if self._client is not None and self._client.is_connected():
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
            self._unreachable = None
            self.backoff.worked()
            self._noted("")
            try:
                await self._resume(self._client)
            except BaseException:
                # Whose request was cancelled must not take the subscriptions of others along.
                await self._close()
                raise
            return self._client

    async def request(
        self, method: str, params: Mapping[str, Any], watched: WatchedListener | None = None
    ) -> dict[str, Any]:
        """Send a request, connecting first where there is no connection.

        A lost connection is made again. The request is sent again if the server has not started it, or if it
        is idempotent: read requests are, and tools that declare it.

        Raises:
            MCPError: The server answered with an error.
            RemoteError: It did not, or not in a way that can be understood.
        """
        for is_last in (False, True):
            self.used_at = time.monotonic()
            client = await self.connected()
            if watched is not None:
                self._asking.append(watched)
            try:
                result = await self._answer(client, method, params, self._reporting(watched))
            except MCPError as error:
                if self.is_alone:
                    raise
                raise refusal_by(self.name, error) from error
            except ConnectionLost as error:
                had_too_many, way = self._ending is not None, self._way
                # Another request may have noticed it before, and connected again.
                await self.drop(client)
                # A connection over lines that ended for this reason has it in its error.
                if had_too_many and TOO_MANY_REQUESTS not in str(error):
                    raise ConnectionLost(f"{error}: {TOO_MANY_REQUESTS}") from error
                spec = self.specs.get(str(params.get("name"))) if method == "tools/call" else None
                may_repeat = method in _READING or (spec is not None and spec.is_idempotent)
                if is_last or had_too_many or not (error.was_refused or may_repeat):
                    if way is not None and (why := await way.last_words()):
                        raise ConnectionLost(f"{error}; {why}", was_refused=error.was_refused) from error
                    raise
            else:
                # The client receives the number of messages that were dropped before the answer.
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
        """Send a request over a connection, and return the server's own result without its faults.

        Raises:
            MCPError: The server answered with an error.
            ConnectionLost: It did not answer.
            HttpRefusal: It answered with a status of HTTP.
            InvalidAnswer: Its answer breaks the protocol, and cannot be repaired.
        """
        has_sessions = self.front is not None
        sent = {key: value for key, value in params.items() if key != "_meta"}
        meta = {k: v for k, v in (params.get("_meta") or {}).items() if k not in _OF_CONNECTIONS}
        if has_sessions and is_modern(client):
            # Levels that the client does not want are dropped on the way to it; here they must be requested.
            meta[mcp_types.LOG_LEVEL_META_KEY] = "debug"
        if meta:
            sent["_meta"] = meta
        # A call that is watched over ends by the ladder.
        limit_s = self.services.settings.idle_timeout_s if progress is None else None
        session, http = client.session, HttpAnswer()
        try:
            answer = await ask_remote(session, method, sent, timeout_s=limit_s, progress=progress, http=http)
            # To read an answer, to check it and to use it each take a turn of the event loop.
            await turn()
            result, faults = await repaired(method, sent, answer, has_sessions=has_sessions)
            if method == "tools/list" and is_modern(client):
                learn_tools(session, result)
        except Disconnected as error:
            raise ConnectionLost(error.message.rstrip(".")) from error
        except UnreadableAnswer as error:
            raise InvalidAnswer(f"its answer to {method} breaks the protocol: {error.message}") from error
        except MCPError as error:
            is_unknown = error.code == mcp_types.METHOD_NOT_FOUND
            if http.in_session and http.status == HTTPStatus.NOT_FOUND and not is_unknown:
                # By the protocol this status means that the session is over.
                raise ConnectionLost(error.message, was_refused=True) from error
            if http.in_session and http.status == HTTPStatus.BAD_REQUEST and await self._is_over(session):
                raise ConnectionLost(error.message) from error
            if method != "tools/call" and isinstance(error, NoAnswer) and is_unknown:
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
        self._found(faults)
        await turn()
        return result

    async def _is_over(self, session: ClientSession) -> bool:
        """Return whether the server has forgotten the session; some answer with a bad request."""
        http, limit_s = HttpAnswer(), self.services.settings.idle_timeout_s
        with contextlib.suppress(*FAILURES):
            await ask_remote(session, "ping", {}, timeout_s=limit_s, progress=None, http=http)
        return http.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)

    @property
    def remote(self) -> Remote:
        """The server as a source of resources."""
        return Remote(self.request)

    def _reporting(self, watched: WatchedListener | None) -> ProgressFnT | None:
        if watched is None:
            return None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            params = {"progress": progress, "total": total, "message": message}
            await contained(watched.notify({"method": PROGRESS, "params": params}))

        return report

    async def pages(self, method: str, key: str) -> list[Any]:
        """Return the items of a list, of all its pages."""
        return await pages(self.request, method, key, server=self.name)

    async def spec(self, tool: str) -> ToolSpec | None:
        """Return the server's description of a tool, or None if it lists none of that name."""
        if not self._knows_all:
            # Without the list the call is answered all the same.
            with contextlib.suppress(MCPError, RemoteError):
                changes = self._changes
                self.specs = await self.learn(await self.pages("tools/list", "tools"))
                self._knows_all = changes == self._changes
        return self.specs.get(tool)

    async def learn(self, items: Iterable[Any]) -> dict[str, ToolSpec]:
        """Note the needs of tools as the server lists them now, and return their descriptions."""
        settings, listed = self.services.settings, dict[str, ToolSpec]()
        async for item in in_turns(items):
            # An unknown name is called like an unlisted tool.
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                spec = ToolSpec.of(item, identity=settings.username_parameter)
                listed[spec.name] = spec
                # A server may change its list and not report that.
                self._knows_all &= self.specs.get(spec.name) == spec
                may_destroy = spec.widgets.may_destroy
                self.services.approvals.is_destructive(self.name, spec.name, now=may_destroy)
                self.server.learn(spec, self.user.name, by_url=file_delivery_of(settings) == "url")
        return listed

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification of the client to the server, if it is connected."""
        # Others name an id, and with several servers no id of a client is given to any.
        if self._client is not None and (self.is_alone or method == "notifications/roots/list_changed"):
            await tell_remote(self._client.session, method, params)

    def began(self, task: str, tool: str) -> None:
        """Note a task that the server works on, and the tool that it is a call of."""
        self.tasks[task] = tool
        while len(self.tasks) > _TASKS:
            del self.tasks[next(iter(self.tasks))]

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource, also after a reconnect."""
        # Of several at once only the first opens a stream.
        lock = self._subscribing.setdefault(uri, asyncio.Lock())
        async with lock:
            client = await self.connected()
            if not self.subscribed[uri]:
                try:
                    await self._subscribe(client, uri)
                except BaseException:
                    self._stop_listening(uri)
                    raise
            self.subscribed[uri] += 1

    async def unsubscribe(self, uri: str) -> None:
        """Unsubscribe, once for each subscription."""
        self.subscribed[uri] -= 1
        if self.subscribed[uri] > 0:
            return
        del self.subscribed[uri]
        self._stop_listening(uri)
        if self._client is not None and not is_modern(self._client):
            await self.request("resources/unsubscribe", {"uri": uri})

    async def drop(self, client: "Client[Any] | None" = None) -> None:
        """End the connection; the next request makes a new one.

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

    def check_after_cancel(self) -> None:
        """Begin to end a command that does not stop a cancelled call; requests wait until that is known.

        One that goes on with the call and reads nothing would let the next call run into its time limit. One
        that answers keeps its process, and with it what it remembers.
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
        """Connect in the mode that fits the client, else in the other one.

        Many servers exit on a first message that is not `initialize`, and some know no `initialize`.
        """
        problems: list[str] = []
        refusal: HttpRefusal | None = None
        self._refusals, self._ending = _REFUSALS(), None
        # `server/discover` first, or `initialize` alone.
        preferred = ("auto", "legacy") if self.front is None else ("legacy", "auto")
        known = self.server.mode
        connect_s = max(self.services.settings.load_timeout_s, self.server.least_connect_s)
        for mode in sorted(preferred, key=lambda mode: known not in (None, mode)):
            started_at, http = time.monotonic(), HttpAnswer()
            noting = HTTP_ANSWER.set(http)
            way: ServerTransport | None = None
            try:
                way = self.transport()
                way.session_class = partial(RelayingSession, self)
                client = Client(way, mode=mode, client_info=self.announced.info, init_timeout=connect_s)
                await self._stack.enter_async_context(client)
            except FAILURES as error:
                refusal = HttpRefusal.of(http)
                why = str(refusal or error) or type(error).__name__
                problem = "; ".join(filter(None, (why, way.why if way is not None else "")))
                if refusal is not None and refusal.is_final:
                    problems = [problem]
                    break
                is_late = time.monotonic() - started_at >= connect_s
                if is_late:
                    problem = f"no answer within {connect_s:g} s (raise load_timeout_s): {problem}"
                problems.append(problem)
                # Mode `auto` has tried both handshakes within that time. One that has read nothing cannot
                # start: the other handshake would not be read either.
                if (is_late and mode == "auto") or (way is not None and not way.has_read_input):
                    break
                continue
            finally:
                HTTP_ANSWER.reset(noting)
            version = client.session.protocol_version
            log.info("server connected", extra={"server": self.name, "protocol": version})
            falls_back = mode == "auto" and not is_modern(client)
            if self.server.tier is not None and (problems or falls_back):
                # One that leaves `server/discover` unanswered would take ten seconds at each start.
                self.server.mode = mode if problems else "legacy"
            self._way = way
            return client
        # For a server that cannot start at all, both attempts have one error.
        problem = "; in the other handshake: ".join(dict.fromkeys(each[:_PROBLEM_CHARS] for each in problems))
        raise ServerUnreachable(f"the server {self.name} cannot be reached: {problem}", refusal)

    def capabilities(self, version: str) -> mcp_types.ClientCapabilities:
        """Return the client's capabilities in a version of the protocol."""
        able = self.announced.capabilities or mcp_types.ClientCapabilities()
        foreign = ["extensions" if version in HANDSHAKE_PROTOCOL_VERSIONS else "tasks"]
        # Several servers could name tasks that are not theirs.
        return able.model_copy(update=dict.fromkeys(foreign if self.is_alone else [*foreign, "tasks"]))

    def introduced(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result of `initialize` without its faults."""
        made, faults = introduction(result)
        self._found(faults)
        return made

    def bounded(self, messages: Any) -> PacedMessages:
        """Return the messages of the server without notifications above the rate limit."""
        return PacedMessages(self._pace, messages)

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

    def _found(self, faults: Iterable[Fault]) -> None:
        """Log faults of the server's answers, each once: a list is read again and again."""
        for fault in faults:
            if fault not in self._faults and len(self._faults) < _MOST_FAULTS:
                self._faults.add(fault)
                facts = {"server": self.name, "item": fault.item, "problem": fault.problem}
                event = "invalid item left out" if fault.is_left_out else "invalid item repaired"
                log.warning(event, extra=facts)

    async def _resume(self, client: "Client[Any]") -> None:
        able = client.session.server_capabilities or mcp_types.ServerCapabilities()
        if is_modern(client):
            parts = {"tools": able.tools, "prompts": able.prompts, "resources": able.resources}
            changing = {f"{name}_list_changed" for name, part in parts.items() if part and part.list_changed}
            if changing:
                self._listen(client, dict.fromkeys(changing, True))
        elif able.logging is not None:
            await _quietly(self._answer(client, "logging/setLevel", {"level": "debug"}))
        for uri in list(self.subscribed):
            if is_modern(client):
                # Not awaited: every request waits for this.
                self._listen(client, {"resource_subscriptions": [uri]}, uri)
            elif uri in self.subscribed:
                await _quietly(self._subscribe(client, uri))
            # It may have changed while there was no connection.
            self.resources.updated(uri)

    async def _subscribe(self, client: "Client[Any]", uri: str) -> None:
        if is_modern(client):
            await self._listen(client, {"resource_subscriptions": [uri]}, uri)
        else:
            await self._answer(client, "resources/subscribe", {"uri": uri})

    def _listen(
        self, client: "Client[Any]", wanted: Mapping[str, Any], uri: str = ""
    ) -> "asyncio.Future[None]":
        """Begin to receive changes from a stateless server; return when it has confirmed that."""
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
        """Keep a stream of a stateless server open; each of its events comes as a notification too."""
        backoff = BackOff()
        while True:
            try:
                limit_s = self.services.settings.idle_timeout_s
                async with asyncio.timeout(limit_s) as limit, listen(client.session, **wanted) as events:
                    # It is confirmed, and lasts.
                    limit.reschedule(None)
                    is_first = not started.done()
                    if is_first:
                        started.set_result(None)
                    # Of a lost connection: it may have changed until now.
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
                    # Nobody would repeat the stream of lists, and one that a lost connection had.
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
        """Answer a request of the server with what the client answers."""
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
                # To go on refusing would take everybody's time.
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
        """Pass on a notification of the server."""
        await contained(self._pass_on(method, params))

    async def _pass_on(self, method: str, params: Mapping[str, Any] | None) -> None:
        message = dict(params or {})
        await self._tell_of_dropped(self._pace.report(time.monotonic()))
        # Of several servers each may report on its own tasks and questions only.
        is_own = self.is_alone or message.get("taskId", "") in ("", *self.tasks)
        # Progress has come to the request that it is of.
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
        """Report changed lists, each once for all its changes within a moment."""
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


async def _quietly(request: Awaitable[object]) -> None:
    """Send an optional request."""
    with contextlib.suppress(MCPError, RemoteError):
        await request


def _is_news(method: str, params: Mapping[str, Any]) -> bool:
    """Return whether a notification is well-formed; clients answer others with tracebacks."""
    form = _NEWS.get(method)
    if form is None:
        return False
    try:
        form.model_validate({"method": method, "params": dict(params)}, by_name=False)
    except ValueError:
        return False
    return not nests_deeper(params)
