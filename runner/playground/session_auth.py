"""`/play/mcp`: access of the Playground's page to MCP. The browser's session replaces the token.

It leads to `/mcp` itself, so that the page is served like any client. A request must carry the cookie of a
browser session and come from a page of this server; any other never reaches MCP. MCP sessions created that
way end with the browser's session.
"""

from collections import defaultdict
from collections.abc import Awaitable
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.http.context import Site
from runner.http.identify import of_page
from runner.http.responses import Refusal, refused
from runner.http.under_way import UnderWay
from runner.playground.start_key import Passes
from runner.users.identity import User

__all__ = ["DOOR", "PlaygroundAuth"]

DOOR = "/play/mcp"
_MCP = "/mcp"
_HEADER = "mcp-session-id"
# Ten times the MCP sessions that a user may have at once.
_MOST_SESSIONS = 1000


class PlaygroundAuth:
    """Middleware in front of the application.

    Args:
        app: The application.
        site: The site of the browsers.
        passes: Passes that let a request of a known browser through the check of tokens.
        under_way: Requests in flight in browser sessions.
        most_sessions: Most MCP sessions of a user whose end with the browser's session is remembered.
    """

    def __init__(
        self,
        app: ASGIApp,
        site: Site,
        passes: Passes,
        under_way: UnderWay,
        most_sessions: int = _MOST_SESSIONS,
    ) -> None:
        self._app = app
        self._site = site
        self._passes = passes
        self._most_sessions = most_sessions
        self._sessions: defaultdict[str, dict[str, tuple[User, Any]]] = defaultdict(dict)
        under_way.also(self._end)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Forward a request to `/play/mcp` to `/mcp`; pass all others unchanged."""
        if scope["type"] != "http" or scope["path"] != DOOR:
            return self._app(scope, receive, send)
        return self._let_in(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            user = await of_page(self._site, request)
        except Refusal as refusal:
            await refused(refusal.status, refusal.sentence, refusal.headers)(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(Headers(raw=message.get("headers", [])).get(_HEADER), user, scope["app"])
            await send(message)

        headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        await self._app(self._led(scope, headers, user), receive, sent)

    def _led(self, scope: Scope, headers: list[tuple[bytes, bytes]], user: User) -> Scope:
        """Return the request forwarded to `/mcp`."""
        if self._site.settings.auth.kind != "none":
            headers = [*headers, (b"authorization", f"Bearer {self._passes.give(user)}".encode())]
        return {**scope, "path": _MCP, "raw_path": _MCP.encode(), "headers": headers}

    def _note(self, session: str | None, user: User, web: Any) -> None:
        if session is not None:
            # The creator of the MCP session: other browser sessions of that user may only use it.
            mine = self._sessions[user.name]
            mine.setdefault(session, (user, web))
            while len(mine) > self._most_sessions:
                del mine[next(iter(mine))]

    async def _end(self, user: User) -> None:
        """End the MCP sessions created in a browser's session, as their client would."""
        held = self._sessions.get(user.name, {})
        for session, (_, web) in [item for item in held.items() if item[1][0] == user]:
            held.pop(session, None)
            await self._app(self._led(*self._farewell(session, web), user), _nothing, _unheard)
        if not held:
            self._sessions.pop(user.name, None)

    def _farewell(self, session: str, web: Any) -> tuple[Scope, list[tuple[bytes, bytes]]]:
        settings = self._site.settings
        scope: Scope = {
            "type": "http",
            "app": web,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "DELETE",
            "scheme": "http",
            "query_string": b"",
            "root_path": "",
            "client": None,
            "server": (settings.host, settings.port),
            "state": {},
        }
        return scope, [(b"host", b"localhost"), (_HEADER.encode(), session.encode())]


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(_: Message) -> None:
    """Discard a response message."""
