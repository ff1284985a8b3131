"""Answers to calls that bypassed the SDK, identical to the SDK's."""

import logging
from collections.abc import Mapping
from typing import Any, cast

from fastmcp import FastMCP
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import modern_error_data
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp_types import ErrorData

from runner.worker.internals.low_level import low_level
from runner.worker.wire import RequestFacts

__all__ = ["error_data", "is_refusal", "sealed_question", "status_of"]

log = logging.getLogger(__name__)

# The SDK's code for an unknown exception in the handshake era.
_EXCEPTION = 0


async def sealed_question(
    app: FastMCP, result: dict[str, Any], *, facts: RequestFacts, params: Mapping[str, Any]
) -> HandlerResult:
    """Return an `input_required` result with its state sealed, as the SDK seals those it sends."""
    # A seal binds the state to the request and to its sender, a context variable; it sends nothing.
    ctx: ServerRequestContext[Any, Any] = ServerRequestContext(
        session=cast("Any", None),
        lifespan_context=None,
        protocol_version=facts.protocol,
        method="tools/call",
        params=params,
        request_id=facts.request_id,
    )

    async def answer(_ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
        return result

    (seal,) = (item for item in low_level(app).middleware if isinstance(item, RequestStateBoundary))
    return await seal(ctx, answer)


def error_data(error: Exception, *, has_handshake: bool, has_session: bool) -> dict[str, Any]:
    """Return the JSON-RPC error that the SDK would make of an exception.

    Args:
        error: The exception, while it is handled.
        has_handshake: Whether the call is of the handshake era.
        has_session: Whether it has a session, or came over stdio.
    """
    data = handler_exception_to_error_data(error) if has_handshake else modern_error_data(error)
    if data is None:
        log.error("tool call handler raised", exc_info=error)
        data = ErrorData(code=_EXCEPTION, message=str(error))
    return data.model_dump(
        mode="json", by_alias=True, exclude_none=not has_session, exclude_unset=has_session
    )


def status_of(reply: Mapping[str, Any]) -> int:
    """Return the HTTP status of a JSON-RPC answer in the modern era."""
    return ERROR_CODE_HTTP_STATUS.get(reply["error"]["code"], 200) if "error" in reply else 200


def is_refusal(error: Exception) -> bool:
    """Return whether the SDK has a specific error for an exception: it is a refusal, not a fault."""
    return handler_exception_to_error_data(error) is not None
