"""`/play/mcp`: the way of the Playground's page to MCP. The browser's session stands for the token.

It leads to `/mcp` itself, so that a page gets what any client gets. A request must carry the cookie of a
browser session and must come from a page of this server; one from anywhere else never reaches MCP.
"""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.http.answers import Refusal, refused
from runner.http.site import Site
from runner.http.visitors import of_page
from runner.playground.keys import Passes

__all__ = ["DOOR", "Door"]

DOOR = "/play/mcp"
_MCP = "/mcp"


class Door:
    """Middleware in front of the application."""

    def __init__(self, app: ASGIApp, site: Site, passes: Passes) -> None:
        self._app = app
        self._site = site
        self._passes = passes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lead a request to `/play/mcp` on to `/mcp`; let all others pass."""
        if scope["type"] != "http" or scope["path"] != DOOR:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            user = await of_page(self._site, request)
        except Refusal as refusal:
            await refused(refusal.status, refusal.sentence, refusal.headers)(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        if self._site.settings.auth.kind != "none":
            headers.append((b"authorization", f"Bearer {self._passes.give(user.name)}".encode()))
        await self._app({**scope, "path": _MCP, "raw_path": _MCP.encode(), "headers": headers}, receive, send)
