"""What is changed in FastMCP's MCP endpoint right after it has started, for want of arguments.

The SDK refuses bodies above 4 MiB. Its session manager takes another limit, but FastMCP, which makes that
manager when the application starts, does not pass one on. It bounds the sessions of all, and not those of
one user; it reads a body of any number of values. And usual calls are answered without it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

from runner.http.internals.endpoint import endpoint_of
from runner.http.whole import WholeRequests
from runner.protocol.counted_bodies import CountedBodies
from runner.protocol.direct import Answerer
from runner.protocol.direct_http import DirectCalls
from runner.protocol.internals.http_sessions import HttpSessions, bound_sessions

__all__ = ["set_up_endpoint"]


def set_up_endpoint(
    app: Starlette,
    *,
    max_bytes: int,
    max_sessions: int,
    user: Callable[[], str | None],
    direct: Answerer | None,
) -> None:
    """Change the MCP endpoint of `app`, made by FastMCP's `http_app`.

    Args:
        app: The application.
        max_bytes: Longest body of a request.
        max_sessions: Sessions of one user at a time.
        user: Returns whose the present request is, if that can be said.
        direct: Answers usual calls, if it is not the SDK that does.

    Raises:
        StartError: When `app` starts: this version of FastMCP is built otherwise.
    """
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Starlette) -> AsyncIterator[Any]:
        async with start(started) as state:
            manager, limit = endpoint_of(app)
            limit.max_body_size = max_bytes
            bound_sessions(manager, most=max_sessions, user=user)
            limit.app = WholeRequests(CountedBodies(limit.app))
            if direct is not None:
                limit.app = DirectCalls(limit.app, direct, HttpSessions(manager, direct.connected))
            yield state

    app.router.lifespan_context = lifespan
