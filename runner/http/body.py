"""The limit of an MCP request's body over HTTP.

The SDK refuses bodies above 4 MiB. Its session manager takes another limit, but FastMCP, which makes
that manager when the application starts, does not pass one on; so it is set right after the start.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp.server.auth.middleware import RequireAuthMiddleware
from fastmcp.server.http import StreamableHTTPASGIApp
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.applications import Starlette
from starlette.routing import Route

from runner.errors import StartError

__all__ = ["limit_bodies"]


def limit_bodies(app: Starlette, max_bytes: int) -> None:
    """Let `app`, made by FastMCP's `http_app`, take MCP requests of up to `max_bytes`.

    Raises:
        StartError: When `app` starts: this version of FastMCP is built otherwise.
    """
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Starlette) -> AsyncIterator[Any]:
        async with start(started) as state:
            _limit(app).max_body_size = max_bytes
            yield state

    app.router.lifespan_context = lifespan


def _limit(app: Starlette) -> RequestBodyLimitMiddleware:
    for route in app.routes:
        endpoint = route.endpoint if isinstance(route, Route) else None
        if isinstance(endpoint, RequireAuthMiddleware):
            endpoint = endpoint.app
        if isinstance(endpoint, StreamableHTTPASGIApp) and endpoint.session_manager is not None:
            limit = endpoint.session_manager.asgi_app
            if isinstance(limit, RequestBodyLimitMiddleware):
                return limit
    raise StartError("this FastMCP has no body limit to set; install the version that pyproject.toml names")
