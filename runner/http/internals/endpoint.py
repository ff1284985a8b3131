"""FastMCP's MCP endpoint over HTTP: where it is in an application, and what FastMCP puts in front of it.

Neither FastMCP nor the SDK documents these modules; the application that they make is public.
"""

from fastmcp.server.auth.middleware import RequireAuthMiddleware
from fastmcp.server.http import HostOriginGuardMiddleware, StreamableHTTPASGIApp
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.applications import Starlette
from starlette.routing import Route

from runner.errors import StartError

__all__ = ["HostOriginGuardMiddleware", "endpoint_of"]


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
