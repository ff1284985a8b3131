"""Contract errors for MCP requests that failed through a fault of ours.

Without this, the SDK would answer in the handshake era with code 0 and the text of the exception.

Source: JSON-RPC 2.0, "Error object"; `runner.contract.unexpected_errors`.
"""

from functools import partial
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from runner.contract.own_paths import OwnPaths
from runner.contract.unexpected_errors import unexpected
from runner.protocol.internals.answer import is_refusal
from runner.protocol.internals.host import Relay
from runner.protocol.messages import check_meta, check_name
from runner.protocol.result_messages import failed_result, redacted_error, redacted_result

__all__ = ["answer_failures"]


def answer_failures(own_paths: OwnPaths) -> Relay:
    """Return the outermost middleware of the SDK, which answers failed requests.

    Args:
        own_paths: Paths to redact from answers.
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
    except Exception as error:
        answer = None if is_refusal(error) else unexpected(error)
        # FastMCP keeps the error in a frame of its traceback: a cycle that would hold the whole request.
        error.__traceback__ = None
        if isinstance(error, MCPError):
            raise redacted_error(own_paths, error) from error
        if answer is None:
            raise
        if ctx.method == "tools/call":
            return failed_result(answer, protocol=ctx.protocol_version)
        raise MCPError(code=INTERNAL_ERROR, message=answer.message, data=answer.details) from error
