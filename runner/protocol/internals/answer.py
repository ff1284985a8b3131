"""Answers to calls that bypassed the SDK, equal to its own."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastmcp import FastMCP
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import modern_error_data
from mcp.server.session import ServerSession
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import ErrorData
from starlette.requests import Request

from runner.worker.internals.exchange import RelayedExchange
from runner.worker.internals.low_level import low_level
from runner.worker.wire import RequestFacts

__all__ = ["error_data", "is_refusal", "sealed_question", "status_of"]

log = logging.getLogger(__name__)

# The code of an exception that the SDK does not know, in eras with sessions.
_EXCEPTION = 0


async def sealed_question(
    app: FastMCP,
    result: dict[str, Any],
    *,
    request: Request | None,
    facts: RequestFacts,
    params: Mapping[str, Any],
) -> HandlerResult:
    """Return an `input_required` result whose state is sealed, as the SDK does to what passes through it."""
    exchange = RelayedExchange(
        request_id=facts.request_id,
        can_send_request=False,
        transport=TransportContext(kind=facts.transport, can_send_request=False),
        message_metadata=None if request is None else ServerMessageMetadata(request_context=request),
        on_notify=_tell_nobody,
        on_request=_ask_nobody,
    )
    connection = Connection.from_envelope(facts.protocol, facts.client_info, facts.client_capabilities)
    ctx: ServerRequestContext[Any, Any] = ServerRequestContext(
        session=ServerSession(exchange, connection),
        lifespan_context=None,
        protocol_version=facts.protocol,
        method="tools/call",
        params=params,
        request_id=facts.request_id,
        request=request,
    )

    async def answer(_ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
        return result

    call_next: CallNext = answer
    for seal in reversed(low_level(app).middleware):
        if isinstance(seal, RequestStateBoundary):
            call_next = partial(_through, seal, call_next)
    return await call_next(ctx)


async def _through(
    seal: RequestStateBoundary, call_next: CallNext, ctx: ServerRequestContext[Any, Any]
) -> HandlerResult:
    return await seal(ctx, call_next)


async def _tell_nobody(_method: str, _params: Mapping[str, Any] | None) -> None:
    return None


async def _ask_nobody(method: str, _params: Mapping[str, Any] | None) -> dict[str, Any]:
    raise NoBackChannelError(method)


def error_data(error: Exception, *, has_handshake: bool, has_session: bool) -> dict[str, Any]:
    """Return the error of a JSON-RPC answer that the SDK makes of an exception.

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
    """Return whether an exception is one that the SDK has words for: a refusal, not a fault."""
    return handler_exception_to_error_data(error) is not None
