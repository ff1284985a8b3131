"""Requests over MCP that failed for a fault of ours: their answer is an error of the contract.

Without this, the SDK would answer in its earlier era with code 0 and the text of the exception.

Source: JSON-RPC 2.0, "Error object"; `runner.last_resort`.
"""

from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.artifacts.process import failed
from runner.errors import CallError
from runner.internals.answer import is_told
from runner.last_resort import unexpected
from runner.render import Delivery, render

__all__ = ["answer_failures", "failed_result"]


def failed_result(error: CallError, *, protocol: str) -> dict[str, Any]:
    """Return the result of a tool call that ended with an error, and with nothing else.

    Args:
        error: The error.
        protocol: The client's protocol version.
    """
    message = render(failed(error), wire={}, output_schema=None, delivery=Delivery.REFERENCE)
    if protocol not in HANDSHAKE_PROTOCOL_VERSIONS:
        message.setdefault("resultType", "complete")
    return message


async def answer_failures(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Answer a request whose handling has failed. Middleware of the SDK's, outside of all other.

    Raises:
        MCPError: The request is no call of a tool, or was refused.
    """
    try:
        return await call_next(ctx)
    except Exception as error:
        if is_told(error):
            raise
        told = unexpected(error)
        if ctx.method == "tools/call":
            return failed_result(told, protocol=ctx.protocol_version)
        raise MCPError(code=INTERNAL_ERROR, message=told.message, data=told.details) from error
