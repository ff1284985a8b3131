"""Scope checks of tokens on every route, and the challenge of requests without a valid token.

FastMCP requires the scopes of `auth.required_scopes` on `/mcp` only; this module requires them for files and
events. The challenge has the URL of this server's metadata, which names where to log in.

Source: RFC 6750, section 3; RFC 9728, section 5.1; MCP specification 2025-11-25, "Authorization".
"""

from collections.abc import Awaitable, Sequence

from fastmcp.server.dependencies import get_access_token
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.contract.login_challenge import challenge
from runner.http.responses import refused

__all__ = ["Challenges"]

_ASKS = "www-authenticate"
_NAMED = "resource_metadata"


class Challenges:
    """Middleware, after token verification, that checks scopes and completes challenges.

    Args:
        app: The application.
        required: Scopes that every token must have.
        metadata: URL of this server's protected-resource metadata, if it has any.
    """

    def __init__(self, app: ASGIApp, *, required: Sequence[str] = (), metadata: str | None = None) -> None:
        self._app = app
        self._required = tuple(required)
        self._metadata = metadata

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        return self._checked(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = get_access_token()
        if token is not None and not set(self._required) <= set(token.scopes):
            header = challenge(
                "the token lacks a scope",
                error="insufficient_scope",
                scopes=self._required,
                resource_metadata=self._metadata,
            )
            sentence = (
                f"this token lacks a scope that this server needs ({' '.join(self._required)}); "
                "log in again and allow it"
            )
            await refused(403, sentence, {_ASKS: header})(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and self._metadata is not None:
                self._name(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, sent)

    def _name(self, headers: MutableHeaders) -> None:
        wanted = headers.get(_ASKS, "")
        scheme, _, facts = wanted.partition(" ")
        if scheme.lower() == "bearer" and _NAMED not in facts:
            named = f'{_NAMED}="{self._metadata}"'
            headers[_ASKS] = f"{scheme} {facts}, {named}" if facts else f"{scheme} {named}"
