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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import mcp_types
from fastmcp import Client
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.server.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_to_notification
from pydantic import BaseModel

from runner.contract.nesting import nests_deeper
from runner.homes.homes import HomeLease
from runner.protocol.internals.connection import connection_levels
from runner.protocol.internals.proxy import HTTP_ANSWER, HttpAnswer, tell_remote
from runner.protocol.internals.types import Connection, ProgressFnT
from runner.protocol.messages import check_meta
from runner.protocol.resource_tools import RemoteError, RemoteResources
from runner.proxy.deadline_watch import WatchedListener
from runner.proxy.questions import ANSWER_S
from runner.proxy.remote import (
    FAILURES,
    Announced,
    ConnectionLost,
    HttpRefusal,
    RemoteSession,
    ServerTransport,
    client_for,
    contained,
    is_modern,
)
from runner.proxy.repair import Fault
from runner.proxy.server_messages import TOO_MANY_REQUESTS, NotificationPace
from runner.steps.listener import CLIENT_REQUESTS, MESSAGE, PROGRESS, ClientRefusal, log_message, too_deep
from runner.system.backoff import BackOff
from runner.system.turns import in_turns
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User
from sandbox.token_bucket import TokenBucket

__all__ = ["Front", "ServerUnreachable", "Upstream"]

log = logging.getLogger(__name__)


def question_of(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a question as a client of several servers gets them.

    A client shows people which server asks, and knows only the proxy. Ids of several servers may be equal:
    that of a question gets the server's name. A question has no progress and becomes no task, since ids of
    those could not be told apart.
    """
    made = {key: value for key, value in params.items() if key != "task"}
    if isinstance(made.get("message"), str):
        made["message"] = f"{server} asks: {made['message']}"
    if isinstance(made.get("elicitationId"), str):
        made["elicitationId"] = f"{server}:{made['elicitationId']}"
    if isinstance(made.get("_meta"), Mapping):
        made["_meta"] = {key: value for key, value in made["_meta"].items() if key != "progressToken"}
    return made


def questions_by(server: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the server's name in each question with which it answers, in later eras."""
    questions = result.get("inputRequests")
    if not isinstance(questions, Mapping):
        return result
    named = {
        key: {**each, "params": question_of(server, each["params"])}
        if isinstance(each, Mapping) and isinstance(each.get("params"), Mapping)
        else each
        for key, each in questions.items()
    }
    return {**result, "inputRequests": named}


def refusal_by(server: str, error: MCPError) -> MCPError:
    """Return an error with the server's name in the questions that are to be answered first."""
    data = error.error.data
    questions = data.get("elicitations") if isinstance(data, Mapping) else None
    if not isinstance(questions, list):
        return error
    named = [question_of(server, each) if isinstance(each, Mapping) else each for each in questions]
    return MCPError(error.error.code, error.error.message, {**data, "elicitations": named})


def logged_by(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a log message with the name of the server that sent it."""
    logger = params.get("logger")
    return {**params, "logger": f"{server}.{logger}" if isinstance(logger, str) else server}


_SHORT_S = 2.0
# Within it, changes of a list are reported once.
_MOMENT_S = 0.1
# For an answer to what costs a server nothing, after it was asked to stop.
_PATIENCE_S = 2.0
_TASKS = 1000
_PAGES = 1000
# Of a list that is put together from pages, and of what is known of tools; both would grow without end.
_MOST_ITEMS = 100_000
_MOST_LIST_BYTES = 1 << 26
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
_LISTS = frozenset(
    {
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/tools/list_changed",
    }
)


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
    early: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

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

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send the client a notification; log messages only of the levels that it asked for."""
        if not self.is_ready.is_set():
            size = len(json.dumps(params, default=str))
            if len(self.early) < _MOST_EARLY and size <= _MOST_EARLY_CHARS:
                self.early.append((method, params))
            return
        message = log_message(params, connection_levels(self.connection)) if method == MESSAGE else params
        if message is not None:
            await self.connection.notify(method, message)

    async def begin(self) -> None:
        """Send the client the notifications that came before its handshake was complete."""
        self.is_ready.set()
        early, self.early = self.early, []
        for method, params in early:
            # A client that is gone receives none of them.
            with contextlib.suppress(Exception):
                await self.tell(method, params)


class ServerUnreachable(RemoteError):
    """A remote server could not be connected to.

    Attributes:
        refusal: The response over HTTP with which it refused, if it did.
    """

    def __init__(self, problem: str, refusal: HttpRefusal | None = None) -> None:
        super().__init__(problem)
        self.refusal = refusal


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Upstream:
    """A connection that is made when it is needed.

    Attributes:
        name: Name of the server.
        user: The user, in whose session its events are.
        transport: Makes the way to it, a new one for each connection.
        resources: Its resources.
        front: The client, where its protocol has sessions.
        announced: Name and capabilities of the client that the server receives.
        changed: Called when a resource or list has changed, with the notification's method and URI.
        ends_with_its_connection: Whether dropping the connection ends the server.
        answer_s: Seconds until a request without a watchdog fails.
        connect_s: Seconds to connect; the server may have to start meanwhile.
        identity: Name of the tools' parameter for the caller's name.
        is_alone: Whether its client has no other server: then the client's ids need no translation.
        learned: Called with the tools that the server lists.
        on_connect: Receives the result of each attempt to connect: why it failed, or an empty text.
        modes: By server, the mode of connecting that works where the other one ended it; shared by all
            connections, so that only the first one starts the server twice.
        specs: The tools, once known.
        subscribed: How many listen to each resource.
        tasks: The tool of each task that the server has begun.
    """

    name: str
    user: User
    transport: Callable[[], ServerTransport]
    resources: RemoteResources
    front: Front | None
    announced: Announced
    changed: Callable[[str, str], Awaitable[None]]
    ends_with_its_connection: bool = False
    answer_s: float = 30.0
    connect_s: float = 30.0
    identity: str = "username"
    is_alone: bool = True
    learned: Callable[[Iterable[ToolSpec]], None] = lambda _specs: None
    on_connect: Callable[[str], None] = lambda _why: None
    modes: dict[str, str] = field(default_factory=dict)
    backoff: BackOff = field(default_factory=BackOff)
    used_at: float = field(default_factory=time.monotonic)
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    subscribed: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, str] = field(default_factory=dict)
    _checking: "asyncio.Task[None] | None" = None
    _unreachable: ServerUnreachable | None = None
    _faults: set[Fault] = field(default_factory=set)
    _sizes: dict[str, int] = field(default_factory=dict)
    _asking: list[WatchedListener] = field(default_factory=list)
    _questions: int = 0
    _refusals: TokenBucket = field(default_factory=_REFUSALS)
    _ending: "asyncio.Task[None] | None" = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _client: "Client[Any] | None" = None
    _way: ServerTransport | None = None
    _knows_all: bool = False
    _changes: int = 0
    _reporting_changes: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _pace: NotificationPace = field(default_factory=NotificationPace)

    @property
    def busy(self) -> bool:
        """True if a request is under way."""
        return bool(self._asking)

    @property
    def in_use(self) -> bool:
        """True if a request is in flight, or a resource has a subscriber."""
        return self.busy or bool(self.subscribed)

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
                self.on_connect(str(error))
                raise
            self._unreachable = None
            self.backoff.worked()
            self.on_connect("")
            await self._resume(self._client)
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
            session = await self.remote()
            if watched is not None:
                self._asking.append(watched)
            try:
                return await self._received_all(session.request(method, params, self._reporting(watched)))
            except ConnectionLost as error:
                had_too_many, way = self._ending is not None, self._way
                # Another request may have noticed it before, and connected again.
                await self.drop(session.client)
                # A connection over lines that ended for this reason has it in its error.
                if had_too_many and TOO_MANY_REQUESTS not in str(error):
                    raise ConnectionLost(f"{error}: {TOO_MANY_REQUESTS}") from error
                spec = self.specs.get(str(params.get("name"))) if method == "tools/call" else None
                may_repeat = method in _READING or (spec is not None and spec.is_idempotent)
                if is_last or had_too_many or not (error.was_refused or may_repeat):
                    if way is not None and (why := await way.last_words()):
                        raise ConnectionLost(f"{error}; {why}", was_refused=error.was_refused) from error
                    raise
            finally:
                if watched is not None:
                    self._asking.remove(watched)
        raise AssertionError("unreachable")

    async def _received_all(self, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Return an answer, after the client received the number of messages dropped before it."""
        try:
            result = await answer
        except MCPError as error:
            if self.is_alone:
                raise
            raise refusal_by(self.name, error) from error
        if not self.is_alone:
            result = questions_by(self.name, result)
        await self._tell_of_dropped(self._pace.report(time.monotonic(), at_last=True))
        return result

    def _reporting(self, watched: WatchedListener | None) -> ProgressFnT | None:
        if watched is None:
            return None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            params = {"progress": progress, "total": total, "message": message}
            await contained(watched.notify({"method": PROGRESS, "params": params}))

        return report

    async def pages(self, method: str, key: str) -> list[Any]:
        """Return the items of a list, of all its pages."""
        items: list[Any] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        size = 0
        while True:
            page = await self.request(method, params)
            found = page.get(key)
            found = found if isinstance(found, list) else []
            items += found
            size += _size(found)
            if len(items) > _MOST_ITEMS or size > _MOST_LIST_BYTES:
                facts = {"server": self.name, "method": method, "items": len(items), "bytes": size}
                log.warning("list truncated", extra=facts)
                return items[:_MOST_ITEMS]
            cursor = page.get("nextCursor")
            # A server that repeats a cursor, or never ends, must not keep us for ever.
            if not isinstance(cursor, str) or not cursor or cursor in seen or len(seen) >= _PAGES:
                return items
            seen.add(cursor)
            params = {"cursor": cursor}

    async def spec(self, tool: str) -> ToolSpec | None:
        """Return the server's description of a tool, or None if it lists none of that name."""
        if not self._knows_all:
            # Without the list the call is answered all the same.
            with contextlib.suppress(MCPError, RemoteError):
                changes = self._changes
                await self.learn(await self.pages("tools/list", "tools"))
                self._knows_all = changes == self._changes
        return self.specs.get(tool)

    async def learn(self, items: Iterable[Any]) -> None:
        """Note what tools the server lists, as it lists them now."""
        async for item in in_turns(items):
            if not isinstance(item, Mapping):
                continue
            name = str(item.get("name"))
            self._forget(name)
            self._sizes[name] = _size(item)
            # An unknown name is called like an unlisted tool.
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                spec = ToolSpec.of(item, identity=self.identity)
                self.specs[spec.name] = spec
                self.learned([spec])
        # What was listed longest ago is called from then on as if it had not been.
        size = sum(self._sizes.values())
        while len(self._sizes) > _MOST_ITEMS or size > _MOST_LIST_BYTES:
            oldest = next(iter(self._sizes))
            size -= self._sizes[oldest]
            self._forget(oldest)

    def _forget(self, tool: str) -> None:
        self._sizes.pop(tool, None)
        self.specs.pop(tool, None)

    async def remote(self) -> RemoteSession:
        """Return the session, connecting first where there is none."""
        self.used_at = time.monotonic()
        return self._session(await self.connected())

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
        client = await self.connected()
        if not self.subscribed[uri]:
            await self._subscribe(client, uri)
        self.subscribed[uri] += 1

    async def unsubscribe(self, uri: str) -> None:
        """Unsubscribe, once for each subscription."""
        self.subscribed[uri] -= 1
        if self.subscribed[uri] > 0:
            return
        del self.subscribed[uri]
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
        if client is None or self.busy or not self.ends_with_its_connection:
            return

        async def check() -> None:
            async with self._lock:
                if client is not self._client:
                    return
                with anyio.move_on_after(_PATIENCE_S) as limit, contextlib.suppress(MCPError, RemoteError):
                    await self._session(client).request(
                        "server/discover" if is_modern(client) else "ping", {}
                    )
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
        known = self.modes.get(self.name)
        for mode in sorted(preferred, key=lambda mode: known not in (None, mode)):
            started_at, http = time.monotonic(), HttpAnswer()
            noting = HTTP_ANSWER.set(http)
            way: ServerTransport | None = None
            try:
                way = self.transport()
                client = client_for(
                    way,
                    mode=mode,
                    announced=self.announced,
                    on_question=self._on_request,
                    on_notification=self._on_notification,
                    pace=self._pace,
                    connect_s=self.connect_s,
                    found=self._found,
                )
                await self._stack.enter_async_context(client)
            except FAILURES as error:
                refusal = HttpRefusal.of(http)
                why = str(refusal or error) or type(error).__name__
                problem = "; ".join(filter(None, (why, way.why if way is not None else "")))
                if refusal is not None and refusal.is_final:
                    problems = [problem]
                    break
                is_late = time.monotonic() - started_at >= self.connect_s
                if is_late:
                    problem = f"no answer within {self.connect_s:g} s (raise load_timeout_s): {problem}"
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
            if self.ends_with_its_connection and (problems or falls_back):
                # One that leaves `server/discover` unanswered would take ten seconds at each start.
                self.modes[self.name] = mode if problems else "legacy"
            self._way = way
            return client
        # For a server that cannot start at all, both attempts have one error.
        problem = "; in the other handshake: ".join(dict.fromkeys(each[:_PROBLEM_CHARS] for each in problems))
        raise ServerUnreachable(f"the server {self.name} cannot be reached: {problem}", refusal)

    def _session(self, client: "Client[Any]") -> RemoteSession:
        # Log levels that a client with sessions does not want are dropped on the way to it.
        return RemoteSession(client, self.answer_s, has_sessions=self.front is not None, found=self._found)

    def _found(self, fault: Fault) -> None:
        """Log a fault of the server's answers, once: a list is read again and again."""
        if fault in self._faults or len(self._faults) >= _MOST_FAULTS:
            return
        self._faults.add(fault)
        facts = {"server": self.name, "item": fault.item, "problem": fault.problem}
        log.warning("invalid item left out" if fault.is_left_out else "invalid item repaired", extra=facts)

    async def _resume(self, client: "Client[Any]") -> None:
        able = client.session.server_capabilities or mcp_types.ServerCapabilities()
        if is_modern(client):
            parts = {"tools": able.tools, "prompts": able.prompts, "resources": able.resources}
            changing = {f"{name}_list_changed" for name, part in parts.items() if part and part.list_changed}
            if changing:
                self._listen(client, dict.fromkeys(changing, True))
        elif able.logging is not None:
            await _quietly(self._session(client).request("logging/setLevel", {"level": "debug"}))
        for uri in list(self.subscribed):
            await _quietly(self._subscribe(client, uri))
            # It may have changed while there was no connection.
            await self.changed("notifications/resources/updated", uri)

    async def _subscribe(self, client: "Client[Any]", uri: str) -> None:
        if is_modern(client):
            await self._listen(client, {"resource_subscriptions": [uri]})
        else:
            await self._session(client).request("resources/subscribe", {"uri": uri})

    def _listen(self, client: "Client[Any]", wanted: Mapping[str, Any]) -> "asyncio.Future[None]":
        """Begin to receive changes from a stateless server; return when it has confirmed that."""
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._receive(client, wanted, started))
        self._stack.callback(task.cancel)
        return started

    async def _receive(
        self, client: "Client[Any]", wanted: Mapping[str, Any], started: "asyncio.Future[None]"
    ) -> None:
        """Receive a stream of a stateless server, and open it again when it is lost."""
        (uri,) = wanted.get("resource_subscriptions", ("",))
        missed = [f"notifications/{kind.replace('_list', '/list')}" for kind in wanted if not uri]
        backoff = BackOff()
        while not uri or not started.done() or self.subscribed[uri]:
            try:
                async with listen(client.session, **wanted) as events:
                    if started.done():
                        # It may have changed while there was no connection.
                        for method in missed or ["notifications/resources/updated"]:
                            await self._changed(method, uri)
                    else:
                        started.set_result(None)
                    backoff.worked()
                    async for event in events:
                        notification = event_to_notification(event, {})
                        about = str(event.uri) if isinstance(event, ResourceUpdated) else ""
                        if not uri or self.subscribed[uri]:
                            await self._changed(notification.method, about)
            except (*FAILURES, SubscriptionLost) as error:
                if not started.done():
                    started.set_exception(error)
                    return
            backoff.failed(time.monotonic())
            await asyncio.sleep(backoff.wait_s(time.monotonic()))

    async def _close(self) -> None:
        self._client = self._way = None
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        except FAILURES as error:
            log.info("server connection failed", extra={"server": self.name, "problem": str(error)[:200]})

    async def _on_request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
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
        self._questions += 1
        try:
            question = params or {}
            return await self._answered(
                method, dict(question) if self.is_alone else question_of(self.name, question)
            )
        finally:
            self._questions -= 1

    async def _answered(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self.front is None and method in CLIENT_REQUESTS and not self.announced.offers(method):
            # A client with sessions answers that itself.
            message = f"the client does not offer {method}"
            raise MCPError(code=mcp_types.METHOD_NOT_FOUND, message=message)
        if self._asking:
            try:
                return await self._asking[-1].ask(method, params)
            except ClientRefusal as refusal:
                raise MCPError(code=refusal.code, message=str(refusal)) from refusal
        if self.front is not None:
            return await self.front.ask(method, params)
        message = "no request of the client is under way during which it could be asked"
        raise MCPError(code=mcp_types.INVALID_REQUEST, message=message)

    async def _on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass on a notification of the server."""
        message = dict(params or {})
        await self._tell_of_dropped(self._pace.report(time.monotonic()))
        if method == PROGRESS:
            # It has come to the request that it is of.
            return
        if method == MESSAGE and not self.is_alone:
            message = logged_by(self.name, message)
        if method == MESSAGE and self._asking:
            await self._asking[-1].notify({"method": method, "params": message})
        elif method == "notifications/resources/updated" or method in _LISTS:
            await self._changed(method, str(message.get("uri", "")))
        elif self.front is not None and (method == MESSAGE or _is_news(method, message)):
            # Of several servers each may report on its own tasks and questions only.
            if self.is_alone or method == MESSAGE:
                await self.front.tell(method, message)
            elif message.get("taskId", "") in ("", *self.tasks):
                await self.front.tell(method, question_of(self.name, message))

    async def _tell_of_dropped(self, count: int) -> None:
        """Notify the client of dropped notifications, and of lists that may have changed."""
        if not count:
            return
        log.warning("notifications dropped", extra={"server": self.name, "count": count})
        words = f"{count} notifications of {self.name} were dropped: there were more than could be passed on"
        message = {"level": "warning", "logger": "runner", "data": {"msg": words, "extra": None}}
        if self._asking:
            await self._asking[-1].notify({"method": MESSAGE, "params": message})
        elif self.front is not None:
            await self.front.tell(MESSAGE, message)
        for method in sorted(_LISTS):
            await self._changed(method, "")
        for uri in list(self.subscribed):
            await self._changed("notifications/resources/updated", uri)

    async def _changed(self, method: str, uri: str) -> None:
        """Report a changed resource; without a URI, a list, once for all its changes within a moment."""
        if uri:
            await self.changed(method, uri)
            return
        self._knows_all = False
        self._changes += 1
        for tool in list(self._sizes):
            self._forget(tool)

        async def report() -> None:
            await asyncio.sleep(_MOMENT_S)
            del self._reporting_changes[method]
            await contained(self.changed(method, ""))

        if method not in self._reporting_changes:
            self._reporting_changes[method] = asyncio.create_task(report())


def _size(value: Any) -> int:
    """Return the length of a part of a server's answer as JSON."""
    return len(json.dumps(value))


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
