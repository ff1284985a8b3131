"""A request of an MCP client, as it reached the host: who sent it, and how to answer meanwhile."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import mcp_types
from fastmcp.server.auth import AccessToken
from fastmcp.server.dependencies import get_access_token
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.http.visitors import browser_session
from runner.identity import IdentityError, User, resolve
from runner.internals import facts_of, notify_client, request_client
from runner.ladder import ClientRefusal
from runner.request import RequestFacts
from runner.settings import Settings
from runner.tokens import Tokens

__all__ = ["McpClient", "Sender", "Transport", "has_sessions", "sender"]

Transport = Literal["stdio", "http"]

Sender = tuple[User, RequestFacts]
"""The user, and what a tool may learn of the request."""


class McpClient:
    """The client of one request. A `runner.ladder.Client`."""

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._ctx = ctx

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the stream of the request."""
        await notify_client(self._ctx, method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the client something on the stream of the request.

        Raises:
            ClientRefusal: The client refused, or cannot be asked.
        """
        try:
            return await request_client(self._ctx, method, params)
        except MCPError as error:
            raise ClientRefusal(error.error.code, error.error.message) from error


def has_sessions(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Say whether the client's protocol has sessions, that is a handshake."""
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def sender(
    settings: Settings, tokens: Tokens, transport: Transport, ctx: ServerRequestContext[Any, Any]
) -> Sender:
    """Return who a request comes from, in the session in which it came.

    Args:
        settings: The effective settings.
        tokens: What signs the cookies of browsers.
        transport: What the server is served over.
        ctx: The request.

    Raises:
        MCPError: It comes from nobody whom this server serves.
    """
    token: AccessToken | None = get_access_token()
    claims = None if token is None else {"client_id": token.client_id, **token.claims}
    try:
        user = resolve(settings, transport=transport, claims=claims, host=settings.host)
    except IdentityError as error:
        raise MCPError(code=mcp_types.INVALID_REQUEST, message=str(error)) from error
    facts = facts_of(ctx, token)
    return replace(user, session=_session(tokens, ctx, user, facts)), facts


def _session(
    tokens: Tokens, ctx: ServerRequestContext[Any, Any], user: User, facts: RequestFacts
) -> str | None:
    """Return the session of a request: the browser's, so that a page finds what it uploaded, or MCP's."""
    if ctx.request is not None:
        known = browser_session(tokens, ctx.request, now=time.time())
        if known is not None and known.name == user.name:
            return known.session
    # Later eras have no sessions; theirs would be a new one for each request.
    return facts.session_id if has_sessions(ctx) else None
