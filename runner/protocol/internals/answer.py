"""Answers to calls that have not passed the SDK, as it would have given them."""

from collections.abc import Mapping
from typing import Any

from fastmcp import FastMCP
from mcp.server.connection import Connection
from mcp.server.context import HandlerResult
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import ServerRunner, _extract_meta, modern_error_data
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from starlette.requests import Request

from runner.worker.internals.exchange import RelayedExchange
from runner.worker.wire import RequestFacts

__all__ = ["error_reply", "is_told", "sealed_question"]


def sealed_question(
    app: FastMCP,
    result: dict[str, Any],
    *,
    request: Request | None,
    facts: RequestFacts,
    params: Mapping[str, Any],
) -> HandlerResult:
    """Return an `input_required` result whose state is sealed, as the SDK does to what passes through it."""
    low = app._mcp_server
    seals = [item for item in low.middleware if isinstance(item, RequestStateBoundary)]
    exchange = RelayedExchange(
        request_id=facts.request_id,
        can_send_request=False,
        transport=TransportContext(kind=facts.transport, can_send_request=False),
        message_metadata=None if request is None else ServerMessageMetadata(request_context=request),
        on_notify=_tell_nobody,
        on_request=_ask_nobody,
    )
    connection = Connection.from_envelope(facts.protocol, facts.client_info, facts.client_capabilities)
    runner = ServerRunner(low, connection, None)
    ctx = runner._make_context(exchange, "tools/call", params, _extract_meta(params), facts.protocol)
    answer: HandlerResult = result
    for seal in reversed(seals):
        answer = seal._seal_result(ctx, answer, None)
    return answer


async def _tell_nobody(_method: str, _params: Mapping[str, Any] | None) -> None:
    return None


async def _ask_nobody(method: str, _params: Mapping[str, Any] | None) -> dict[str, Any]:
    raise NoBackChannelError(method)


def error_reply(request_id: str | int, error: Exception) -> tuple[dict[str, Any], int]:
    """Return the JSON-RPC error that an exception becomes in the modern era, and its HTTP status."""
    told = modern_error_data(error)
    body = told.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"jsonrpc": "2.0", "id": request_id, "error": body}, ERROR_CODE_HTTP_STATUS.get(told.code, 200)


def is_told(error: Exception) -> bool:
    """Say whether an exception is one that the SDK has words for: a refusal, not a fault."""
    return handler_exception_to_error_data(error) is not None
