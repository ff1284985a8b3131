"""FastMCP's MCP endpoint over HTTP: its place in an application, and its guard of `Host`.

Neither FastMCP nor the SDK documents these modules; the application that they make is public. Its lifespan
can be read, but not replaced, by what Starlette documents.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastmcp.server.auth.middleware import RequireAuthMiddleware
from fastmcp.server.http import HostOriginGuardMiddleware, StreamableHTTPASGIApp
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from runner.errors import StartError

__all__ = [
    "HostOriginGuardMiddleware",
    "StreamableHTTPSessionManager",
    "endpoint_of",
    "stand_in_front",
]


def stand_in_front(
    app: Starlette, front: Callable[[StreamableHTTPSessionManager, ASGIApp], ASGIApp], *, max_bytes: int
) -> None:
    """Put something in front of the MCP endpoint of an application once it has started.

    It stands behind the SDK's limit of a body, which gives it each body in one message.

    Args:
        app: The application, made by FastMCP's `http_app`; not started yet.
        front: Makes what gets the requests, of the session manager and of what got them before.
        max_bytes: Longest body of a request, in place of the SDK's limit.

    Raises:
        StartError: When `app` starts: this version of FastMCP is built otherwise.
    """
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Starlette) -> AsyncIterator[Any]:
        async with start(started) as state:
            manager, limit = endpoint_of(app)
            limit.max_body_size = max_bytes
            limit.app = front(manager, limit.app)
            yield state

    app.router.lifespan_context = lifespan


def endpoint_of(app: Starlette) -> tuple[StreamableHTTPSessionManager, RequestBodyLimitMiddleware]:
    """Return the session manager of an application that has started, and the limit in front of it.

    Raises:
        StartError: This version of FastMCP is built otherwise.
    """
    for route in app.routes:
        endpoint = route.endpoint if isinstance(route, Route) else None
        if isinstance(endpoint, RequireAuthMiddleware):
            endpoint = endpoint.app
        if isinstance(endpoint, StreamableHTTPASGIApp) and endpoint.session_manager is not None:
            manager = endpoint.session_manager
            if isinstance(manager.asgi_app, RequestBodyLimitMiddleware):
                return manager, manager.asgi_app
    raise StartError("this FastMCP has no body limit to set; install the version that pyproject.toml names")
