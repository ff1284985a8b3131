"""Types of the SDK that documented signatures use and that live in undocumented modules.

Modules import them from here, so that a move changes one line.
"""

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.connection import Connection
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import (
    ProgressFnT,
    coerce_request_id,
)
from mcp.shared.message import SessionMessage
from starlette.types import Scope

__all__ = [
    "REQUEST_CANCELLED",
    "Connection",
    "ProgressFnT",
    "SessionMessage",
    "StreamableHTTPSessionManager",
    "coerce_request_id",
    "credential_of",
]


def credential_of(scope: Scope | None) -> object:
    """Return the credential of a request over HTTP, as the SDK compares it between requests."""
    user = None if scope is None else scope.get("user")
    return authorization_context(user) if isinstance(user, AuthenticatedUser) else None
