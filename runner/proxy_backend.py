"""One connection to one remote server, on behalf of one client or user: kept, lost, and made again.

What the server says on its own while it works on requests, messages and questions, goes to whoever asked
last: the protocol does not say to which request it belongs. After a failure to connect the next attempt
waits, longer each time, so that a server that is down is not called a thousand times.

Source: MCP specification 2025-11-25, "Lifecycle", and 2026-07-28; requirements S4-37, S4-93.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types
from fastmcp import Client
from fastmcp.client.transports import ClientTransport
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.server.subscriptions import ResourceUpdated
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.proxy_remote import FAILURES, ConnectionLost, RemoteSession
from runner.proxy_watch import Watched
from runner.remote_resources import RemoteError, RemoteResources

__all__ = ["BackOff", "Backend", "Unreachable"]

log = logging.getLogger(__name__)

CONNECT_S = 30.0
_SHORT_S = 2.0
_MODERN = ("auto",)
_HANDSHAKE = ("legacy", "auto")


class Unreachable(RemoteError):
    """A remote server could not be connected to."""


@dataclass(slots=True)
class BackOff:
    """When the next attempt may be made. Time is an argument, in seconds."""

    first_s: float = 0.5
    most_s: float = 30.0
    _failures: int = 0
    _failed_at: float = 0.0

    def wait_s(self, now: float) -> float:
        """Return how long to wait before the next attempt."""
        if not self._failures:
            return 0.0
        delay = min(self.most_s, self.first_s * 2.0 ** min(self._failures - 1, 20))
        return max(0.0, self._failed_at + delay - now)

    def failed(self, now: float) -> None:
        """Note a failure."""
        self._failures += 1
        self._failed_at = now

    def worked(self) -> None:
        """Note a success: the next failure is the first again."""
        self._failures = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Backend:
    """A connection that is made when it is needed.

    Attributes:
        name: Name of the server.
        transport: Makes the way to it, a new one for each connection.
        resources: Its resources.
        modern: Whether the client speaks a protocol without sessions.
        changed: Hears that a resource, or a list, has changed: the notification's method and its URI.
        ends_with_its_connection: Whether dropping the connection ends the server.
        answer_s: How long an answer may take where nobody watches over the request.
    """

    name: str
    transport: Callable[[], ClientTransport]
    resources: RemoteResources
    modern: bool
    changed: Callable[[str, str], Awaitable[None]]
    ends_with_its_connection: bool = False
    answer_s: float = 30.0
    backoff: BackOff = field(default_factory=BackOff)
    used_at: float = field(default_factory=time.monotonic)
    schemas: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)
    subscribed: set[str] = field(default_factory=set)
    _asking: list[Watched] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _client: "Client[Any] | None" = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._asking)

    async def connected(self) -> "Client[Any]":
        """Return the client, connected.

        Raises:
            Unreachable: The server cannot be reached, or it is too early to try again.
        """
        async with self._lock:
            if self._client is not None and self._client.is_connected():
                return self._client
            await self._close()
            wait_s = self.backoff.wait_s(time.monotonic())
            if wait_s > _SHORT_S:
                raise Unreachable(f"the server {self.name} cannot be reached; next attempt in {wait_s:.0f} s")
            await asyncio.sleep(wait_s)
            try:
                self._client = await self._connect()
            except Unreachable:
                self.backoff.failed(time.monotonic())
                raise
            self.backoff.worked()
            await self._resume(self._client)
            return self._client

    async def request(
        self, method: str, params: Mapping[str, Any], watched: Watched | None = None
    ) -> dict[str, Any]:
        """Send a request, connecting first where there is no connection.

        A connection that is found to be lost is made again, and the request sent again, unless it is a
        call of a tool: that may have been done.

        Raises:
            MCPError: The server answered with an error.
            RemoteError: It did not, or not in a way that can be understood.
        """
        self.used_at = time.monotonic()
        session = RemoteSession(await self.connected(), self.answer_s)
        with _listed(self._asking, watched):
            try:
                return await session.request(method, params, _reporting(watched))
            except ConnectionLost as error:
                await self.drop()
                if method == "tools/call" and "session" not in str(error).lower():
                    raise
            session = RemoteSession(await self.connected(), self.answer_s)
            return await session.request(method, params, _reporting(watched))

    async def remote(self) -> RemoteSession:
        """Return the session, for `RemoteResources`."""
        self.used_at = time.monotonic()
        return RemoteSession(await self.connected(), self.answer_s)

    async def subscribe(self, uri: str) -> None:
        """Hear when a resource changes, also after the connection was made again."""
        client = await self.connected()
        if uri not in self.subscribed:
            await self._subscribe(client, uri)
            self.subscribed.add(uri)

    async def unsubscribe(self, uri: str) -> None:
        """Hear of it no more."""
        if uri in self.subscribed:
            self.subscribed.discard(uri)
            if not _is_modern(await self.connected()):
                await self.request("resources/unsubscribe", {"uri": uri})

    async def drop(self) -> None:
        """End the connection; the next request makes a new one."""
        async with self._lock:
            await self._close()

    async def _connect(self) -> "Client[Any]":
        problem = ""
        for mode in _MODERN if self.modern else _HANDSHAKE:
            client: Client[Any] = Client(
                self.transport(),
                mode=mode,
                init_timeout=CONNECT_S,
                log_handler=self._message,
                elicitation_handler=self._question,
                message_handler=self._heard,
            )
            try:
                await self._stack.enter_async_context(client)
            except FAILURES as error:
                problem = str(error) or type(error).__name__
                continue
            log.info("connected", extra={"server": self.name, "protocol": client.session.protocol_version})
            return client
        raise Unreachable(f"the server {self.name} cannot be reached: {problem[:300]}")

    async def _resume(self, client: "Client[Any]") -> None:
        capabilities = client.session.server_capabilities
        session = RemoteSession(client, self.answer_s)
        if not _is_modern(client) and capabilities is not None and capabilities.logging is not None:
            # What the client does not want to hear is left out on the way to it.
            await _quietly(session.request("logging/setLevel", {"level": "debug"}))
        for uri in self.subscribed:
            await _quietly(self._subscribe(client, uri))
            # It may have changed while nobody heard of it.
            await self.changed("notifications/resources/updated", uri)

    async def _subscribe(self, client: "Client[Any]", uri: str) -> None:
        if not _is_modern(client):
            await RemoteSession(client, self.answer_s).request("resources/subscribe", {"uri": uri})
            return
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._listen(client, uri, begun))
        self._stack.callback(task.cancel)
        await begun

    async def _listen(self, client: "Client[Any]", uri: str, begun: "asyncio.Future[None]") -> None:
        try:
            async with listen(client.session, resource_subscriptions=[uri]) as heard:
                begun.set_result(None)
                async for event in heard:
                    if isinstance(event, ResourceUpdated) and uri in self.subscribed:
                        await self.changed("notifications/resources/updated", str(event.uri))
        except (*FAILURES, SubscriptionLost) as error:
            if not begun.done():
                begun.set_exception(error)

    async def _close(self) -> None:
        self._client = None
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        except FAILURES as error:
            log.info("connection ended badly", extra={"server": self.name, "problem": str(error)[:200]})

    async def _message(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        if self._asking:
            said = params.model_dump(by_alias=True, mode="json", exclude_none=True)
            await self._asking[-1].notify({"method": "notifications/message", "params": said})

    async def _question(
        self, _message: str, _type: object, params: mcp_types.ElicitRequestParams, _context: object
    ) -> Any:
        if not self._asking:
            return mcp_types.ElicitResult(action="cancel")
        said = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        answer = await self._asking[-1].ask("elicitation/create", said)
        return mcp_types.ElicitResult.model_validate(answer)

    async def _heard(self, message: object) -> None:
        match message:
            case mcp_types.ResourceUpdatedNotification():
                await self.changed(message.method, str(message.params.uri))
            case (
                mcp_types.ToolListChangedNotification()
                | mcp_types.PromptListChangedNotification()
                | mcp_types.ResourceListChangedNotification()
            ):
                self.schemas.clear()
                await self.changed(message.method, "")
            case _:
                pass


def _is_modern(client: "Client[Any]") -> bool:
    return client.session.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS


def _reporting(watched: Watched | None) -> ProgressFnT | None:
    if watched is None:
        return None

    async def report(progress: float, total: float | None, message: str | None) -> None:
        said = {"progress": progress, "total": total, "message": message}
        await watched.notify({"method": "notifications/progress", "params": said})

    return report


@contextmanager
def _listed(asking: list[Watched], watched: Watched | None) -> Iterator[None]:
    if watched is None:
        yield
        return
    asking.append(watched)
    try:
        yield
    finally:
        asking.remove(watched)


async def _quietly(asked: Awaitable[object]) -> None:
    """Ask for something without which all else works too."""
    with contextlib.suppress(MCPError, RemoteError):
        await asked
