"""FastMCP's MCP endpoint over HTTP: its place in an application, and its guard of `Host`.

Neither FastMCP nor the SDK documents these modules; the application that they make is public. Starlette
documents how to read an application's lifespan, but not how to replace it.
"""

import math
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
    "take_over_idle_sessions",
]


def stand_in_front(
    app: Starlette, front: Callable[[StreamableHTTPSessionManager, ASGIApp], ASGIApp], *, max_bytes: int
) -> None:
    """Insert middleware in front of the MCP endpoint of an application, once the application has started.

    The middleware runs after the SDK's body limit, which delivers each body in one message.

    Args:
        app: The application, made by FastMCP's `http_app`; not started yet.
        front: Makes the middleware from the session manager and the application behind it.
        max_bytes: Longest body of a request, in place of the SDK's limit.

    Raises:
        StartError: When `app` starts: this version of FastMCP has another structure.
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


def take_over_idle_sessions(manager: StreamableHTTPSessionManager) -> float:
    """Keep the SDK from ending idle sessions; return the seconds after which it would."""
    idle_s, manager.session_idle_timeout = manager.session_idle_timeout, None
    return math.inf if idle_s is None else idle_s


def endpoint_of(app: Starlette) -> tuple[StreamableHTTPSessionManager, RequestBodyLimitMiddleware]:
    """Return the session manager of a started application, and the body limit in front of it.

    Raises:
        StartError: This version of FastMCP has another structure.
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
