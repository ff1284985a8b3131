"""Change notifications for MCP clients, in either era of the protocol.

`runner://files` changes whenever a file of the user is added or removed, `artifact://ID` when that file is.
Resources and lists of a remote server change when it sends a notification. In the handshake era, a client
subscribes to a URI and is notified on its connection; in the modern, it listens on the stream of a request.
No client is notified of another user's files. If the list of tools names the files, it changes with them. A
tool may announce a change of a resource in its tool file: subscribers and listeners of its user are notified.
Its announcement of changed lists goes to clients of the modern era.

Source: MCP specification 2025-11-25, "Resources, Subscriptions", and 2026-07-28, `subscriptions/listen`;
requirements S0-68, S4-12 and S4-37.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import mcp_types
from fastmcp import FastMCP
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from runner.errors import RunnerError
from runner.files.file_events import FILES_URI, REMOVED, STORED
from runner.files.my_files import SCHEME
from runner.protocol.eras import has_sessions
from runner.protocol.internals.connection import connection_of, is_ready, notify_client
from runner.protocol.internals.types import Connection
from runner.users.events import LIST_CHANGED, LISTENERS_PER_USER, UPDATED, Events, Subscription
from runner.users.identity import User
from runner.worker.internals.low_level import low_level

__all__ = ["Beyond", "Subscriptions", "Tasks", "announced"]

_STATE = "toolcell_subscriptions"
_MOST_TASKS = 100
# With the listeners of a user, at most 32 MiB.
_MOST_URIS = 512
_MOST_URI_CHARS = 2048
_LISTS: Mapping[object, ServerEvent] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}

_Context = ServerRequestContext[Any, Any]


class Beyond(Protocol):
    """Remote resources that announce changes. Methods raise the error that the client gets."""

    async def subscribe(self, ctx: _Context, uri: str) -> None:
        """Begin to publish an event `resource_updated` whenever this resource changes."""

    async def unsubscribe(self, ctx: _Context, uri: str) -> None:
        """End a subscription of this resource."""


class Tasks(Protocol):
    """Calls that run as tasks, to whose status clients may subscribe."""

    def check(self, method: str, params: Mapping[str, Any]) -> None:
        """Refuse a client that has not declared support of tasks."""

    def known(self, user: User, names: Sequence[str]) -> list[str]:
        """Return those of the ids that belong to tasks of a user."""

    def watched(
        self, user: User, names: Sequence[str]
    ) -> AbstractContextManager[AsyncIterator[dict[str, Any]]]:
        """Report changes of a user's tasks while the block lasts."""


def announced(discovered: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `server/discover` result of a tool file's server with the host's capabilities."""
    capabilities = discovered.get("capabilities")
    if not isinstance(capabilities, Mapping):
        return dict(discovered)
    resources = {**(capabilities.get("resources") or {}), "subscribe": True}
    return {**discovered, "capabilities": {**capabilities, "resources": resources}}


@dataclass(slots=True, eq=False)
class _Watch:
    """Subscriptions of one connection: resources, and changes of its list of tools."""

    lists_tools: bool = False
    uris: set[str] = field(default_factory=set)
    task: "asyncio.Task[None] | None" = None


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The subscriptions of an application's clients.

    Attributes:
        events: Source of the changes.
        user_of: Returns the user of a request, or raises the error that the client gets.
        beyond: Remote resources, if there are any.
        lists_files: Whether the list of tools names the user's files, so that it changes with them.
        has: Returns whether a served tool file has a resource, whose changes its tools may announce.
        tasks: Tasks that clients may listen for, if there are any.
    """

    events: Events
    user_of: Callable[[_Context], User]
    beyond: Beyond | None = None
    lists_files: bool = False
    has: Callable[[_Context, str], Awaitable[bool]] | None = None
    tasks: Tasks | None = None

    def offer(self, app: FastMCP) -> None:
        """Add subscriptions, which FastMCP lacks, to an application and to its capabilities."""
        low = low_level(app)
        low.add_request_handler("resources/subscribe", mcp_types.SubscribeRequestParams, self._subscribe)
        low.add_request_handler(
            "resources/unsubscribe", mcp_types.UnsubscribeRequestParams, self._unsubscribe
        )
        low.add_request_handler(
            "subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, self._listen
        )
        if self.lists_files:
            low.middleware.insert(0, self._note_list)

    async def _subscribe(
        self, ctx: _Context, params: mcp_types.SubscribeRequestParams
    ) -> mcp_types.EmptyResult:
        uri = str(params.uri)
        watch: _Watch = connection_of(ctx).state.setdefault(_STATE, _Watch())
        if uri in watch.uris:
            return mcp_types.EmptyResult()
        if len(watch.uris) >= _MOST_URIS or len(uri) > _MOST_URI_CHARS:
            message = f"a session may subscribe to {_MOST_URIS} URIs of {_MOST_URI_CHARS} characters"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        if self.beyond is not None and not _is_ours(uri):
            await self.beyond.subscribe(ctx, uri)
        elif not _is_ours(uri) and (self.has is None or not await self.has(ctx, uri)):
            message = (
                f"{uri!r} announces no changes; the file's own resources, {FILES_URI} and artifact:// do"
            )
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message, data={"uri": uri})
        self._begin(watch, ctx)
        watch.uris.add(uri)
        return mcp_types.EmptyResult()

    async def _note_list(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Record a client that lists tools with file names: it is notified when the files change."""
        if ctx.method == "tools/list" and has_sessions(ctx) and is_ready(ctx):
            watch: _Watch = connection_of(ctx).state.setdefault(_STATE, _Watch())
            # A client with too many streams open still lists the tools, but gets no notifications.
            with contextlib.suppress(MCPError):
                self._begin(watch, ctx)
                watch.lists_tools = True
        return await call_next(ctx)

    def _begin(self, watch: _Watch, ctx: _Context) -> None:
        """Start to listen for a connection. Called before the answer, so that no later change is lost."""
        if watch.task is not None:
            return
        user, connection = self._one_more(ctx), connection_of(ctx)
        listening = self.events.subscribe(user=user.segment, session=user.session)
        subscription = connection.exit_stack.enter_context(listening)
        watch.task = asyncio.create_task(_tell(subscription, watch, connection))
        connection.exit_stack.callback(watch.task.cancel)

    async def _unsubscribe(
        self, ctx: _Context, params: mcp_types.UnsubscribeRequestParams
    ) -> mcp_types.EmptyResult:
        uri = str(params.uri)
        watch: _Watch | None = connection_of(ctx).state.get(_STATE)
        if watch is None or uri not in watch.uris:
            return mcp_types.EmptyResult()
        watch.uris.discard(uri)
        if self.beyond is not None and not _is_ours(uri):
            await self.beyond.unsubscribe(ctx, uri)
        return mcp_types.EmptyResult()

    async def _listen(
        self, ctx: _Context, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        user = self._one_more(ctx)
        wanted = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        bus = InMemorySubscriptionBus()
        stream = ListenHandler(bus)
        async with self._hearing(ctx, [uri for uri in wanted if not _is_ours(uri)]):
            with (
                self._telling_of_tasks(ctx, params, user) as ctx,
                self.events.subscribe(user=user.segment, session=user.session) as subscription,
            ):
                passing = asyncio.create_task(
                    _pass_on(subscription, bus, stream, lists_files=self.lists_files)
                )
                try:
                    return await stream(ctx, params)
                finally:
                    passing.cancel()

    @contextmanager
    def _telling_of_tasks(
        self, ctx: _Context, params: mcp_types.SubscriptionsListenRequestParams, user: User
    ) -> Iterator[_Context]:
        """Yield the request; if it names tasks, with a session that also sends their changes."""
        task_ids = (params.notifications.model_extra or {}).get("taskIds")
        if self.tasks is None or not isinstance(task_ids, list) or not task_ids:
            yield ctx
            return
        self.tasks.check(ctx.method, ctx.params or {})
        # Tasks of other users are left out, like unknown ones.
        names = self.tasks.known(user, [str(name) for name in task_ids[:_MOST_TASKS]])
        session = _WithTasks(ctx, self.tasks, user, names)
        try:
            yield replace(ctx, session=cast("Any", session))
        finally:
            session.end()

    @asynccontextmanager
    async def _hearing(self, ctx: _Context, uris: list[str]) -> AsyncIterator[None]:
        """Relay changes of remote resources until the block ends."""
        if self.beyond is None:
            yield
            return
        started: list[str] = []
        try:
            for uri in uris:
                await self.beyond.subscribe(ctx, uri)
                started.append(uri)
            yield
        finally:
            for uri in started:
                with contextlib.suppress(MCPError, RunnerError):
                    await self.beyond.unsubscribe(ctx, uri)

    def _one_more(self, ctx: _Context) -> User:
        user = self.user_of(ctx)
        if self.events.listeners(user=user.segment) >= LISTENERS_PER_USER:
            message = f"{LISTENERS_PER_USER} subscriptions of this user are open; end one first"
            raise MCPError(code=mcp_types.INVALID_REQUEST, message=message)
        return user


class _WithTasks:
    """A session for one stream that also sends changes of tasks, once its request is acknowledged."""

    def __init__(self, ctx: _Context, tasks: Tasks, user: User, names: Sequence[str]) -> None:
        self._ctx = ctx
        self._tasks = tasks
        self._user = user
        self._names = names
        self._telling: asyncio.Task[None] | None = None

    async def send_notification(self, notification: Any, **more: Any) -> None:
        """Send a notification of the SDK; after the acknowledgement, send changes of tasks too."""
        if not isinstance(notification, mcp_types.SubscriptionsAcknowledgedNotification):
            await self._ctx.session.send_notification(notification, **more)
            return
        message = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
        message["params"]["notifications"]["taskIds"] = list(self._names)
        await notify_client(self._ctx, message["method"], message["params"])
        self._telling = asyncio.create_task(self._tell())

    def end(self) -> None:
        """Send the client no further notification of its tasks."""
        if self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        meta = {"_meta": {SUBSCRIPTION_ID_META_KEY: self._ctx.request_id}}
        with self._tasks.watched(self._user, self._names) as changes:
            async for task in changes:
                await notify_client(self._ctx, "notifications/tasks", {**task, **meta})


async def _tell(subscription: Subscription, watch: _Watch, connection: Connection) -> None:
    async for event in subscription:
        for uri in _updated(event):
            if uri in watch.uris:
                await connection.send_resource_updated(uri)
        if watch.lists_tools and event.get("type") in (STORED, REMOVED):
            await connection.send_tool_list_changed()


async def _pass_on(
    subscription: Subscription, bus: InMemorySubscriptionBus, stream: ListenHandler, *, lists_files: bool
) -> None:
    async for event in subscription:
        if event.get("type") == LIST_CHANGED:
            await bus.publish(_LISTS[event["list"]])
        if lists_files and event.get("type") in (STORED, REMOVED):
            await bus.publish(ToolsListChanged())
        for uri in _updated(event):
            await bus.publish(ResourceUpdated(uri=uri))
    # The server stops: its client gets a proper end of the stream, not a lost connection.
    stream.close()


def _updated(event: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the URIs of the resources that an event reports as changed."""
    if event.get("type") == UPDATED:
        return (str(event["uri"]),)
    return (FILES_URI, str(event["uri"])) if event.get("type") in (STORED, REMOVED) else ()


def _is_ours(uri: str) -> bool:
    return uri == FILES_URI or uri.startswith(SCHEME)
