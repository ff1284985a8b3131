"""Cancellation of in-flight requests when their browser session ends: event streams, calls, MCP sessions.

A request is checked only when it is received. A long-lived one could outlast its session by hours.

Source: `docs/serving.md`, "Browser sessions".
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import anyio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.http.context import Site
from runner.http.identify import ENDED, browser_session, login_of
from runner.http.responses import refused
from runner.users.identity import User

__all__ = ["EndsWithSession", "UnderWay"]

_LOOK_EVERY_S = 1.0
_LOGOUT = ("DELETE", "/api/session")


class UnderWay:
    """Requests in flight, by browser session."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[str, str | None], set[anyio.CancelScope]] = {}
        self._more: list[Callable[[User], Awaitable[None]]] = []

    @contextmanager
    def one(self, user: User, *, seconds: float) -> Iterator[anyio.CancelScope]:
        """Register a request, which is cancelled when its session is ended or after `seconds`."""
        key = (user.name, user.session)
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
            self._scopes.setdefault(key, set()).add(scope)
            try:
                yield scope
            finally:
                self._scopes[key].discard(scope)
                if not self._scopes[key]:
                    del self._scopes[key]

    def also(self, end: Callable[[User], Awaitable[None]]) -> None:
        """Add an action for the end of a session."""
        self._more.append(end)

    async def end(self, user: User) -> None:
        """End the requests in flight in the session of `user`."""
        for scope in self._scopes.get((user.name, user.session), ()):
            scope.cancel()
        for each in self._more:
            await each(user)


class EndsWithSession:
    """Middleware that ends a request with its browser session.

    Args:
        app: The application.
        site: The server.
        under_way: The requests in flight.
    """

    def __init__(self, app: ASGIApp, *, site: Site, under_way: UnderWay) -> None:
        self._app = app
        self._site = site
        self._under_way = under_way

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        if scope["type"] == "http" and b"cookie" in dict(scope["headers"]):
            return self._of_browser(scope, receive, send)
        return self._app(scope, receive, send)

    async def _of_browser(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = _named_by_cookie(self._site, scope)
        login = None if user is None else login_of(self._site, user)
        if user is None or login is None:
            await self._app(scope, receive, send)
            return
        answer: dict[str, Mapping[str, str]] = {}

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer["headers"] = Headers(raw=message.get("headers", []))
            elif not message.get("more_body"):
                answer["end"] = {}
            await send(message)

        with self._under_way.one(user, seconds=login.end - self._site.clock()) as ends:
            watch = asyncio.create_task(self._watched(user))
            try:
                await self._app(scope, receive, sent)
            finally:
                watch.cancel()
        if not ends.cancelled_caught or "end" in answer:
            return
        if "headers" not in answer:
            await refused(401, ENDED)(scope, receive, send)
        elif "content-length" not in answer["headers"]:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        # A body whose length differs from its header is incomplete, and the connection is closed.

    async def _watched(self, user: User) -> None:
        """End the requests in flight in a session that another process has ended: `runner users revoke`."""
        await asyncio.sleep(_LOOK_EVERY_S)
        # Other processes send no notification, so this one polls.
        while login_of(self._site, user) is not None:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        await self._under_way.end(user)


def _named_by_cookie(site: Site, scope: Scope) -> User | None:
    if (scope["method"], scope["path"]) == _LOGOUT:
        return None
    return browser_session(site.settings, site.tokens, Request(scope), now=site.clock())
