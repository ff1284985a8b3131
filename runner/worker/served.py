"""Server of a worker: the author's, of FastMCP or of the MCP SDK, behind one interface.

A worker uses a server only through this, and through its low-level SDK server, which answers every request.
"""

import contextlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import mcp_types
from fastmcp import FastMCP
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from starlette.routing import BaseRoute

from runner.widgets.registration import served_pages
from runner.worker.asked_route import described_routes
from runner.worker.call_scope import strict
from runner.worker.failure_capture import FailureCapture
from runner.worker.internals.low_level import low_level
from runner.worker.internals.sdk_server import (
    AnySdkServer,
    announce_with,
    changes_of,
    has_own_lifespan,
    lifespan_of,
    listing_of,
    low_level_of,
    own_methods,
    routes_of,
    verifier_of,
    watch_calls,
    without_sealing,
)
from runner.worker.internals.server import (
    Ask,
    auth_of,
    capabilities,
    find_tool,
    has_lifespan,
    lifespan,
    lists_of,
    masks_errors,
    routes,
    serve_own,
    single_call_server,
    task_tools,
    warm_type_adapters,
)
from runner.worker.toolfile import AnyServer
from runner.worker.wire import FIND_TOOL

__all__ = ["RUNNERS_SCHEME", "AuthorServer", "Publish", "addresses_of_the_runner", "served_by"]

Publish = Callable[[str, str | None], Awaitable[None]]
"""Notifies the host of a changed list or resource, with the notification's method and the URI."""


class AuthorServer(Protocol):
    """The author's server."""

    @property
    def low(self) -> Server[Any]:
        """Return the low-level server that answers its requests."""

    @property
    def routes(self) -> list[BaseRoute]:
        """Return the HTTP routes that the file adds."""

    async def set_up(self, ask: Ask, failures: FailureCapture, publish: Publish) -> None:
        """Change it so that a worker can serve one request with it, and capture exceptions of tools."""

    async def catalog(self) -> dict[str, Any]:
        """Return the host's description of it."""

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Enter its own lifespan; yield the state that its requests need."""

    def has_lifespan(self) -> bool:
        """Return whether the author has written a lifespan, which may need cleanup at its end."""

    def lists(self) -> object:
        """Return a value that changes with the lists of its components."""


def served_by(server: AnyServer) -> AuthorServer:
    """Return an adapter through which a worker uses a server."""
    return _FastMcp(server) if isinstance(server, FastMCP) else _Sdk(server)


RUNNERS_SCHEME = "artifact://"
"""Scheme of resources that the runner answers itself, for every file."""


async def addresses_of_the_runner(server: AuthorServer) -> list[str]:
    """Return the resources and templates of a server that have the scheme of the runner's own."""
    found: list[str] = []
    for method, items, name in (
        ("resources/list", "resources", "uri"),
        ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ):
        # The author's code may fail without its lifespan, or the server may have no resources.
        with contextlib.suppress(Exception):
            answer = await serve_own(server.low, method, {}, {})
            found += [str(item[name]) for item in answer[items]]
    return [uri for uri in found if uri.lower().startswith(RUNNERS_SCHEME)]


class _FastMcp:
    """A server of FastMCP."""

    def __init__(self, server: FastMCP) -> None:
        self._server = server
        self._tasks: dict[str, int] = {}
        self._lists: Callable[[], object] = int

    @property
    def low(self) -> Server[Any]:
        return low_level(self._server)

    @property
    def routes(self) -> list[BaseRoute]:
        return routes(self._server)

    async def set_up(self, ask: Ask, failures: FailureCapture, publish: Publish) -> None:
        del publish  # FastMCP has no bus of its own.
        self._server.middleware.append(failures)
        failures.masks = masks_errors(self._server)
        self._tasks = await task_tools(self._server)
        await single_call_server(self._server, ask)
        await warm_type_adapters(self._server)
        self._lists = lists_of(self._server)

        async def find(ctx: ServerRequestContext[Any, Any], params: mcp_types.CallToolRequestParams) -> Any:
            del ctx
            return await find_tool(self._server, params.name)

        self.low.add_request_handler(FIND_TOOL, mcp_types.CallToolRequestParams, find)

    async def catalog(self) -> dict[str, Any]:
        tools = await self._server.list_tools(run_middleware=False)
        return {
            **_about(self.low),
            "name": self._server.name,
            "version": self._server.version,
            "capabilities": capabilities(self._server),
            "tools": [_wire(tool.to_mcp_tool(name=tool.name)) for tool in tools],
            "auth": _auth_facts(auth_of(self._server.auth)),
            "tasks": self._tasks,
            "pages": await served_pages(self._server),
            "routes": described_routes(self.routes),
        }

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return lifespan(self._server)

    def has_lifespan(self) -> bool:
        return has_lifespan(self._server)

    def lists(self) -> object:
        return self._lists()


class _Sdk:
    """A server of the MCP SDK, of either level."""

    def __init__(self, server: AnySdkServer) -> None:
        self._server = server
        self._changes: Callable[[], int] = int

    @property
    def low(self) -> Server[Any]:
        return low_level_of(self._server)

    @property
    def routes(self) -> list[BaseRoute]:
        return [*routes_of(self._server)]

    async def set_up(self, ask: Ask, failures: FailureCapture, publish: Publish) -> None:
        del ask  # The SDK keeps no session state.
        without_sealing(self._server)
        watch_calls(self._server, failures.seen)
        announce_with(self._server, publish)
        self._changes = changes_of(self._server)
        listing = listing_of(self._server)

        async def find(ctx: ServerRequestContext[Any, Any], params: mcp_types.CallToolRequestParams) -> Any:
            # Without a name, all of them, for the catalog.
            found = await listing(ctx)
            return {"tools": [tool for tool in found if params.name in ("", tool["name"])]}

        self.low.add_request_handler(FIND_TOOL, mcp_types.CallToolRequestParams, find)

    async def catalog(self) -> dict[str, Any]:
        able = self.low.get_capabilities(NotificationOptions())
        return {
            **_about(self.low),
            "capabilities": _wire(able),
            "tools": await self._tools(),
            "auth": _auth_facts(auth_of(verifier_of(self._server))),
            "routes": described_routes(self.routes),
        }

    async def _tools(self) -> list[dict[str, Any]]:
        try:
            return await self._listed({})
        except Exception:  # noqa: BLE001 - the author's code, which may need what its lifespan makes
            async with self.lifespan() as state:
                return await self._listed(state)

    async def _listed(self, state: Any) -> list[dict[str, Any]]:
        answer = await serve_own(self.low, FIND_TOOL, {"name": "", "arguments": {}}, state)
        tools: list[dict[str, Any]] = strict(answer)["tools"]
        return tools

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return lifespan_of(self._server)

    def has_lifespan(self) -> bool:
        return has_own_lifespan(self.low)

    def lists(self) -> object:
        return self._changes()


def _about(low: Server[Any]) -> dict[str, Any]:
    return {
        "name": low.name,
        "version": low.version,
        "instructions": low.instructions,
        "website_url": low.website_url,
        "icons": [_wire(icon) for icon in low.icons or ()],
        "methods": own_methods(low),
    }


def _wire(value: Any) -> dict[str, Any]:
    description: dict[str, Any] = value.model_dump(by_alias=True, mode="json", exclude_none=True)
    return description


def _auth_facts(auth: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the description of a file's auth as JSON, without empty members."""
    description: dict[str, Any] | None = json.loads(json.dumps(auth, default=str))
    return description
