"""Answers to MCP requests that failed by our own fault: errors of the contract.

Without this, the SDK would answer in its earlier era with code 0 and the text of the exception.

Source: JSON-RPC 2.0, "Error object"; `runner.contract.unexpected_errors`.
"""

from functools import partial
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.artifacts.accept import failed
from runner.contract.own_paths import OwnPaths
from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError
from runner.protocol.internals.answer import is_refusal
from runner.protocol.internals.host import Relay
from runner.protocol.messages import check_meta, check_name
from runner.steps.client_message import Delivery, render

__all__ = ["answer_failures", "failed_result", "redacted_error", "redacted_result"]


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


def redacted_result(own_paths: OwnPaths, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result for clients; an error in it has no path of ours."""
    if result.get("isError") is not True:
        return result
    redacted: dict[str, Any] = own_paths.redact(result)
    return redacted


def redacted_error(own_paths: OwnPaths, error: MCPError) -> MCPError:
    """Return a JSON-RPC error for clients, without paths of ours."""
    return MCPError(
        code=error.error.code,
        message=str(own_paths.redact(error.error.message)),
        data=own_paths.redact(error.error.data),
    )


def answer_failures(own_paths: OwnPaths) -> Relay:
    """Return the outermost middleware of the SDK, which answers failed requests.

    Args:
        own_paths: What no client is told.
    """
    return partial(_answer, own_paths)


async def _answer(
    own_paths: OwnPaths, ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    try:
        check_meta(ctx.params)
        check_name(ctx.method, ctx.params)
        result = await call_next(ctx)
        return redacted_result(own_paths, result) if isinstance(result, dict) else result
    except MCPError as error:
        raise redacted_error(own_paths, error) from error
    except Exception as error:
        if is_refusal(error):
            raise
        answer = unexpected(error)
        if ctx.method == "tools/call":
            return failed_result(answer, protocol=ctx.protocol_version)
        raise MCPError(code=INTERNAL_ERROR, message=answer.message, data=answer.details) from error
