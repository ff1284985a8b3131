"""Types of the SDK that documented signatures use and that live in undocumented modules.

Modules import them from here, so that a move changes one line.
"""

from mcp.server.connection import Connection
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import (
    ProgressFnT,
    coerce_request_id,
)
from mcp.shared.message import SessionMessage

__all__ = [
    "REQUEST_CANCELLED",
    "Connection",
    "ProgressFnT",
    "SessionMessage",
    "StreamableHTTPSessionManager",
    "coerce_request_id",
]
