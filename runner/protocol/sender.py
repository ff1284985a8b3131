"""The sender of an MCP request, and the channel for notifications and questions meanwhile."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import mcp_types
from fastmcp.server.auth import AccessToken
from fastmcp.server.dependencies import get_access_token
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from starlette.requests import Request as HttpRequest

from runner.http.identify import browser_session
from runner.protocol.eras import has_sessions
from runner.protocol.internals.connection import (
    connection_facts,
    connection_of,
    direct_facts,
    facts_of,
    notify_client,
    request_client,
    session_of,
)
from runner.protocol.tool_calls import ToolCall
from runner.settings.parts import ServerSettings
from runner.steps.listener import ClientRefusal
from runner.users.capability_tokens import Tokens
from runner.users.identity import IdentityError, User, resolve
from runner.worker.wire import RequestFacts

__all__ = [
    "McpClient",
    "Sender",
    "Transport",
    "asker",
    "direct_sender",
    "newcomer",
    "request_facts",
    "sender",
]

Transport = Literal["stdio", "http"]

Sender = tuple[User, RequestFacts]
"""The user, and what a tool may learn of the request."""


class McpClient:
    """The client of one request. A `runner.steps.listener.Client`."""

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._ctx = ctx

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the stream of the request."""
        await notify_client(self._ctx, method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the client a request on the stream of this request.

        Raises:
            ClientRefusal: The client refused, or cannot be asked.
        """
        try:
            return await request_client(self._ctx, method, params)
        except MCPError as error:
            raise ClientRefusal(error.error.code, error.error.message) from error


def newcomer(settings: ServerSettings, transport: Transport) -> User:
    """Return the sender that begins a connection, without a session yet.

    Raises:
        MCPError: It comes from nobody whom this server serves.
    """
    return _user(settings, transport, get_access_token())


def asker(
    settings: ServerSettings, tokens: Tokens, transport: Transport, ctx: ServerRequestContext[Any, Any]
) -> User:
    """Return the caller of a request, in its session.

    Args:
        settings: The effective settings.
        tokens: What signs the cookies of browsers.
        transport: What the server is served over.
        ctx: The request.

    Raises:
        MCPError: It comes from nobody whom this server serves.
    """
    user = _user(settings, transport, get_access_token())
    session = _of_browser(settings, tokens, ctx.request, user)
    if session is None and has_sessions(ctx):
        # Later eras have no sessions; theirs would be a new one for each request.
        session = session_of(connection_of(ctx), None if ctx.request is None else ctx.request.scope)
    return replace(user, session=session)


def sender(
    settings: ServerSettings, tokens: Tokens, transport: Transport, ctx: ServerRequestContext[Any, Any]
) -> Sender:
    """Return the sender of a request, and its facts for a tool.

    Raises:
        MCPError: It comes from nobody whom this server serves.
    """
    return asker(settings, tokens, transport, ctx), request_facts(ctx)


def request_facts(ctx: ServerRequestContext[Any, Any]) -> RequestFacts:
    """Return the facts of a request for a tool."""
    return facts_of(ctx, get_access_token())


def direct_sender(settings: ServerSettings, tokens: Tokens, call: ToolCall) -> Sender:
    """Return the sender of a direct call, and its facts for a tool.

    Raises:
        MCPError: It comes from nobody whom this server serves.
    """
    scope = call.scope
    token = None if scope is None else get_access_token()
    user = _user(settings, "stdio" if scope is None else "http", token)
    has_cookie = scope is not None and b"cookie" in dict(scope["headers"])
    session = _of_browser(settings, tokens, HttpRequest(scope), user) if scope and has_cookie else None
    if call.connection is None:
        facts = direct_facts(scope, call.id, call.params, token)
    else:
        facts = connection_facts(call.connection, scope, call.id, token, can_ask=True)
        session = session or facts.session_id
    return (user if session is None else User(user.name, session)), facts


def _user(settings: ServerSettings, transport: Transport, token: AccessToken | None) -> User:
    claims = None if token is None else {"client_id": token.client_id, **token.claims}
    try:
        return resolve(settings, transport=transport, claims=claims, host=settings.host)
    except IdentityError as error:
        raise MCPError(code=mcp_types.INVALID_REQUEST, message=str(error)) from error


def _of_browser(
    settings: ServerSettings, tokens: Tokens, request: HttpRequest | None, user: User
) -> str | None:
    """Return the browser's session of a request, so that a page finds what it uploaded."""
    if request is None or "cookie" not in request.headers:
        return None
    known = browser_session(settings, tokens, request, now=time.time())
    return known.session if known is not None and known.name == user.name else None
