"""Types of the SDK that stand in signatures of what it documents, and in modules that it does not document.

Whoever needs one takes it from here, so that a move of theirs is one line.
"""

from mcp.server.connection import Connection
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

__all__ = [
    "CallOptions",
    "Connection",
    "DispatchContext",
    "OnNotify",
    "OnNotifyIntercept",
    "OnRequest",
    "ProgressFnT",
    "SessionMessage",
    "TransportContext",
    "coerce_request_id",
    "run_notify_intercept",
]
