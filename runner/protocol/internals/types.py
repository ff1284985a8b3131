"""Types of the SDK that documented signatures use and that live in undocumented modules.

Modules import them from here, so that a move changes one line.
"""

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.connection import Connection
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import (
    CallOptions,
    DispatchContext,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    coerce_request_id,
    run_notify_intercept,
)
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from starlette.types import Scope

__all__ = [
    "REQUEST_CANCELLED",
    "CallOptions",
    "Connection",
    "DispatchContext",
    "OnNotify",
    "OnNotifyIntercept",
    "OnRequest",
    "ProgressFnT",
    "SessionMessage",
    "StreamableHTTPSessionManager",
    "TransportContext",
    "coerce_request_id",
    "credential_of",
    "run_notify_intercept",
]


def credential_of(scope: Scope | None) -> object:
    """Return the credential of a request over HTTP, as the SDK compares it between requests."""
    user = None if scope is None else scope.get("user")
    return authorization_context(user) if isinstance(user, AuthenticatedUser) else None
