"""Servers of the MCP SDK itself in a worker: `MCPServer`, and the low-level `Server`.

Both serve requests like a FastMCP server, by the SDK's own single-exchange driver; a high-level server is a
low-level one with handlers of its own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import mcp_types
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import lifespan as default_lifespan
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateBoundary
from mcp.server.subscriptions import ServerEvent
from starlette.applications import Starlette
from starlette.routing import Route

__all__ = [
    "AnySdkServer",
    "announce_with",
    "changes_of",
    "has_own_lifespan",
    "lifespan_of",
    "listing_of",
    "low_level_of",
    "own_methods",
    "routes_of",
    "verifier_of",
    "watch_calls",
    "without_sealing",
]

AnySdkServer = MCPServer[Any] | Server[Any]
Watch = Callable[[Awaitable[Any]], Awaitable[Any]]

_CALL = "tools/call"
_MOST_PAGES = 1000
_OF_PROTOCOL = (
    "completion/", "initialize", "logging/", "ping", "prompts/", "resources/", "server/", "subscriptions/",
    "tasks/", "tools/", "toolcell/",
)  # fmt: skip


@cache
def _app_of(server: MCPServer[Any]) -> Starlette:
    """Build the HTTP application of a high-level server; its public attributes lead to the inner objects."""
    return server.streamable_http_app()


def low_level_of(server: AnySdkServer) -> Server[Any]:
    """Return the low-level server."""
    if not isinstance(server, MCPServer):
        return server
    _app_of(server)
    return server.session_manager.app


def without_sealing(server: AnySdkServer) -> None:
    """Turn off the server's sealing of request state: the host seals it."""
    low = low_level_of(server)
    low.middleware[:] = [item for item in low.middleware if not isinstance(item, RequestStateBoundary)]


def watch_calls(server: AnySdkServer, watch: Watch) -> None:
    """Let `watch` await each tool call, so that it gets the tool's exception.

    The handler of a high-level server turns the exception into a text, so it is watched inside the handler.
    """
    if isinstance(server, MCPServer):
        called = server.call_tool

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await watch(called(*args, **kwargs))

        vars(server)["call_tool"] = call
        return
    entry = server.get_request_handler(_CALL)
    if entry is None:
        return

    async def handle(ctx: ServerRequestContext[Any, Any], params: Any) -> Any:
        return await watch(entry.handler(ctx, params))

    server.add_request_handler(_CALL, entry.params_type, handle)


def listing_of(
    server: AnySdkServer,
) -> Callable[[ServerRequestContext[Any, Any]], Awaitable[list[dict[str, Any]]]]:
    """Return a function that lists all tools of a server, page by page, within a request to it."""
    low = low_level_of(server)

    async def listing(ctx: ServerRequestContext[Any, Any]) -> list[dict[str, Any]]:
        entry = low.get_request_handler("tools/list")
        found: list[dict[str, Any]] = []
        params = mcp_types.PaginatedRequestParams()
        for _ in range(_MOST_PAGES if entry is not None else 0):
            assert entry is not None  # noqa: S101 - no page is asked for otherwise
            listed = await entry.handler(ctx, params)
            page = mcp_types.ListToolsResult.model_validate(listed)
            found += [_wire(tool) for tool in page.tools]
            if page.next_cursor is None:
                break
            params = mcp_types.PaginatedRequestParams(cursor=page.next_cursor)
        return found

    return listing


def has_own_lifespan(low: Server[Any]) -> bool:
    """Return whether the author of a server has written a lifespan."""
    return low.lifespan is not default_lifespan


@asynccontextmanager
async def lifespan_of(server: AnySdkServer) -> AsyncIterator[Any]:
    """Enter the server's own lifespan; yield the state that its requests need."""
    low = low_level_of(server)
    async with low.lifespan(low) as state:
        yield state


def announce_with(server: AnySdkServer, publish: Callable[[str, str | None], Awaitable[None]]) -> None:
    """Forward a server's published changes of lists and resources to the host.

    Args:
        server: The server; a low-level one does not publish.
        publish: Receives the method of a notification, and the URI if it is about a resource.
    """
    if isinstance(server, MCPServer):
        server._subscriptions = _Bus(publish)


class _Bus:
    """The bus of a server, which forwards to the host."""

    def __init__(self, publish: Callable[[str, str | None], Awaitable[None]]) -> None:
        self._publish = publish

    async def publish(self, event: ServerEvent) -> None:
        kinds = {"Tools": "tools", "Prompts": "prompts", "Resources": "resources"}
        for beginning, kind in kinds.items():
            if type(event).__name__ == f"{beginning}ListChanged":
                await self._publish(f"notifications/{kind}/list_changed", None)
        uri = getattr(event, "uri", None)
        if uri is not None:
            await self._publish("notifications/resources/updated", str(uri))

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        del listener
        return lambda: None


def own_methods(low: Server[Any]) -> list[str]:
    """Return the methods that a server answers besides those of the protocol."""
    return sorted(method for method in low._request_handlers if not method.startswith(_OF_PROTOCOL))


def changes_of(server: AnySdkServer) -> Callable[[], int]:
    """Return the counter of changes to the lists of a server from now on; a low-level one has no lists."""
    count = 0

    def counting(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            return change(*args, **kwargs)

        return changed

    if isinstance(server, MCPServer):
        # On this object only. Decorators call these methods; `resource` is one itself, and adds templates.
        for name in ("add_tool", "remove_tool", "add_resource", "resource", "add_prompt", "remove_prompt"):
            vars(server)[name] = counting(getattr(server, name))
    return lambda: count


def verifier_of(server: AnySdkServer) -> Any:
    """Return the token verifier of the server, if it has one."""
    if not isinstance(server, MCPServer):
        return None
    backends = (middleware.kwargs.get("backend") for middleware in _app_of(server).user_middleware)
    found = (backend.token_verifier for backend in backends if isinstance(backend, BearerAuthBackend))
    return next(found, None)


def routes_of(server: AnySdkServer) -> Sequence[Route]:
    """Return the HTTP routes that the file adds to its server."""
    return server._custom_starlette_routes if isinstance(server, MCPServer) else ()


def _wire(tool: mcp_types.Tool) -> dict[str, Any]:
    return tool.model_dump(by_alias=True, mode="json", exclude_none=True)
