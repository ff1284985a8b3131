"""The sender of an MCP request, and the channel for notifications and requests to its client."""

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
    notify_client,
    request_client,
    session_of,
)
from runner.protocol.tool_calls import ToolCall
from runner.settings.parts import ServerSettings
from runner.steps.listener import ClientRefusal
from runner.users.capability_tokens import Tokens
from runner.users.identity import IdentityError, User, user_of
from runner.worker.wire import RequestFacts

__all__ = [
    "McpClient",
    "Transport",
    "asker",
    "direct_sender",
    "newcomer",
    "request_facts",
]

Transport = Literal["stdio", "http"]


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
            ClientRefusal: The client refused, or cannot receive requests.
        """
        try:
            return await request_client(self._ctx, method, params)
        except MCPError as error:
            raise ClientRefusal(error.error.code, error.error.message) from error


def newcomer(settings: ServerSettings, transport: Transport) -> User:
    """Return the user who opens a connection, without a session yet.

    Raises:
        MCPError: The sender is not a user of this server.
    """
    return _user(settings, transport, get_access_token())


def asker(
    settings: ServerSettings, tokens: Tokens, transport: Transport, ctx: ServerRequestContext[Any, Any]
) -> User:
    """Return the user of a request, with its session.

    Args:
        settings: The effective settings.
        tokens: Verifies the cookies of browsers.
        transport: The transport of the server.
        ctx: The request.

    Raises:
        MCPError: The sender is not a user of this server.
    """
    user = _user(settings, transport, get_access_token())
    session = _of_browser(settings, tokens, ctx.request, user)
    if session is None and has_sessions(ctx):
        # The modern era has no sessions: each request would get a new one.
        session = session_of(connection_of(ctx), None if ctx.request is None else ctx.request.scope)
    return replace(user, session=session)


def request_facts(ctx: ServerRequestContext[Any, Any]) -> RequestFacts:
    """Return the facts of a request that its tool may read."""
    scope, token = None if ctx.request is None else ctx.request.scope, get_access_token()
    can_ask = ctx.session.can_send_request
    return connection_facts(connection_of(ctx), scope, ctx.request_id, token, can_ask=can_ask)


def direct_sender(settings: ServerSettings, tokens: Tokens, call: ToolCall) -> tuple[User, RequestFacts]:
    """Return the user of a direct call, and the facts that its tool may read.

    Raises:
        MCPError: The sender is not a user of this server.
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
    try:
        return user_of(settings, token, transport=transport)
    except IdentityError as error:
        raise MCPError(code=mcp_types.INVALID_REQUEST, message=str(error)) from error


def _of_browser(
    settings: ServerSettings, tokens: Tokens, request: HttpRequest | None, user: User
) -> str | None:
    """Return the browser session of a request, so that a page finds its uploads."""
    if request is None or "cookie" not in request.headers:
        return None
    known = browser_session(settings, tokens, request, now=time.time())
    return known.session if known is not None and known.name == user.name else None
