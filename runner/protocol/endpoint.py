"""Checks and bounds in front of the SDK's MCP endpoint, which takes no such arguments.

The SDK refuses bodies above 4 MiB. Its session manager accepts another limit, but FastMCP, which creates that
manager when the application starts, does not pass one. The SDK limits sessions in total and not by user, and
it parses bodies of any number of values. And usual calls are answered without it.
"""

from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.types import ASGIApp

from runner.http.internals.endpoint import StreamableHTTPSessionManager, stand_in_front
from runner.http.whole import WholeRequests
from runner.protocol.counted_bodies import CountedBodies
from runner.protocol.direct import Answerer
from runner.protocol.direct_http import DirectCalls
from runner.protocol.http_sessions import BoundedSessions
from runner.protocol.internals.host import hide_bodies_in_errors

__all__ = ["set_up_endpoint"]


def set_up_endpoint(
    app: Starlette,
    *,
    max_bytes: int,
    user: Callable[[], str | None],
    direct: Answerer | None,
) -> None:
    """Change the MCP endpoint of `app`, made by FastMCP's `http_app`, once it has started.

    Args:
        app: The application.
        max_bytes: Longest body of a request.
        user: Returns whose the present request is, if that can be said.
        direct: Answers usual calls, if it is not the SDK that does.

    Raises:
        StartError: When `app` starts: this version of FastMCP is built otherwise.
    """
    hide_bodies_in_errors()
    stand_in_front(app, partial(_front, user, direct), max_bytes=max_bytes)


def _front(
    user: Callable[[], str | None],
    direct: Answerer | None,
    manager: StreamableHTTPSessionManager,
    endpoint: ASGIApp,
) -> ASGIApp:
    checked: ASGIApp = WholeRequests(CountedBodies(endpoint))
    return BoundedSessions(
        checked if direct is None else DirectCalls(checked, direct, manager),
        idle_s=manager.session_idle_timeout,
        user=user,
        connected=_none if direct is None else direct.connected,
    )


def _none(_session: str) -> None:
    """Return no session: the SDK serves all requests."""
