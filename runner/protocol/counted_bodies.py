"""Refusal of HTTP requests whose body has more JSON values than allowed, before it is parsed.

The SDK parses a body in one go, whatever its number of values, and blocks the event loop meanwhile.

Source: JSON-RPC 2.0, "Response object"; MCP specification 2025-11-25 and 2026-07-28, "Streamable HTTP".
"""

from mcp_types import JSONRPCError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.http.whole import again
from runner.protocol.messages import Unreadable, check_values

__all__ = ["CountedBodies"]


class CountedBodies:
    """An ASGI application in front of another, which gets bodies that can be read in a moment.

    Args:
        app: The other. What stands before this one must give it a body in one message.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer it with an error that names the limit of values."""
        first = await receive()
        try:
            check_values(first.get("body", b""))
        except Unreadable as error:
            await _refusal(error)(scope, receive, send)
            return
        await self._app(scope, again(first, receive), send)


def _refusal(error: Unreadable) -> Response:
    # The id of an answer is one of our own, and no request of the client's.
    answer = JSONRPCError(jsonrpc="2.0", id=error.id if error.is_request else None, error=error.error)
    text = answer.model_dump_json(by_alias=True, exclude_unset=True)
    return Response(text, status_code=400, media_type="application/json")
