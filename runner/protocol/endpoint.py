"""Checks and bounds in front of the SDK's MCP endpoint, which takes no such arguments.

The SDK refuses bodies above 4 MiB. Its session manager accepts another limit, but FastMCP, which creates that
manager when the application starts, does not pass one. The SDK limits sessions in total and not by user, and
it parses bodies of any number of values. And usual calls are answered without it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from mcp_types import JSONRPCError
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.http.internals.endpoint import StreamableHTTPSessionManager, stand_in_front
from runner.http.whole import WholeRequests, again
from runner.protocol.http_sessions import BoundedSessions
from runner.protocol.internals.host import hide_bodies_in_errors
from runner.protocol.messages import Unreadable, check_values
from runner.protocol.tool_calls import Answerer, CallsOverHttp

__all__ = ["set_up_endpoint"]


def set_up_endpoint(
    app: Starlette,
    *,
    max_bytes: int,
    user: Callable[[], str | None],
    direct: Answerer | None,
    session_ended: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Change the MCP endpoint of `app`, made by FastMCP's `http_app`, once it has started.

    Args:
        app: The application.
        max_bytes: Longest body of a request.
        user: Returns whose the present request is, if that can be said.
        direct: Answers usual calls, if it is not the SDK that does.
        session_ended: Awaited with the id of each session that its client has ended.

    Raises:
        StartError: When `app` starts: this version of FastMCP is built otherwise.
    """
    hide_bodies_in_errors()
    stand_in_front(app, partial(_front, user, direct, session_ended or _ignored), max_bytes=max_bytes)


def _front(
    user: Callable[[], str | None],
    direct: Answerer | None,
    session_ended: Callable[[str], Awaitable[None]],
    manager: StreamableHTTPSessionManager,
    endpoint: ASGIApp,
) -> ASGIApp:
    bounded = BoundedSessions(
        WholeRequests(_CountedBodies(endpoint)),
        idle_s=manager.session_idle_timeout,
        user=user,
        connected=_none if direct is None else direct.connected,
        session_ended=session_ended,
    )
    return bounded if direct is None else CallsOverHttp(bounded, direct, manager)


def _none(_session: str) -> None:
    """Return no session: the SDK serves all requests."""


async def _ignored(_session: str) -> None:
    """Do nothing at the end of a session."""


class _CountedBodies:
    """An ASGI application that refuses bodies with too many values; the SDK would read them at once.

    Args:
        app: The application. The body must come in one message.
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
