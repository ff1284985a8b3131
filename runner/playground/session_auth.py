"""`/play/mcp`: the way of the Playground's page to MCP. The browser's session stands for the token.

It leads to `/mcp` itself, so that a page gets what any client gets. A request must carry the cookie of a
browser session and must come from a page of this server; one from anywhere else never reaches MCP. What MCP
sessions were begun that way end with the browser's.
"""

from collections import OrderedDict
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
_MOST_SESSIONS = 4096


class PlaygroundAuth:
    """Middleware in front of the application.

    Args:
        app: The application.
        site: Whose browsers come.
        passes: What lets a request of a known browser through the check of tokens.
        under_way: What is under way in browser sessions.
    """

    def __init__(self, app: ASGIApp, site: Site, passes: Passes, under_way: UnderWay) -> None:
        self._app = app
        self._site = site
        self._passes = passes
        self._sessions: OrderedDict[str, tuple[User, Any]] = OrderedDict()
        under_way.also(self._end)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Lead a request to `/play/mcp` on to `/mcp`; let all others pass."""
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
        """Return a request as it goes on to `/mcp`."""
        if self._site.settings.auth.kind != "none":
            headers = [*headers, (b"authorization", f"Bearer {self._passes.give(user.name)}".encode())]
        return {**scope, "path": _MCP, "raw_path": _MCP.encode(), "headers": headers}

    def _note(self, session: str | None, user: User, web: Any) -> None:
        if session is not None:
            # The session's creator: others of that user may only use it.
            self._sessions.setdefault(session, (user, web))
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)

    async def _end(self, user: User) -> None:
        """End the MCP sessions that were begun in a browser's session, as their client would."""
        mine = [(session, web) for session, (owner, web) in self._sessions.items() if owner == user]
        for session, web in mine:
            self._sessions.pop(session, None)
            await self._app(self._led(*self._farewell(session, web), user), _nothing, _unheard)

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
    """Take an answer for which nobody waits."""
