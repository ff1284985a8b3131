"""Facts of a request for a worker, collected in the host."""

import json
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fastmcp.server.auth import AccessToken
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.types import Scope

from runner.protocol.internals.connection import connection_of, session_of
from runner.worker.wire import RequestFacts

__all__ = ["connection_facts", "direct_facts", "facts_of"]

_KEPT = "toolcell_client"


def facts_of(ctx: ServerRequestContext[Any, Any], token: AccessToken | None) -> RequestFacts:
    """Collect the facts of a received request for a worker."""
    session, scope = ctx.session, None if ctx.request is None else ctx.request.scope
    return connection_facts(
        connection_of(ctx), scope, ctx.request_id, token, can_ask=session.can_send_request
    )


def connection_facts(
    connection: Connection,
    scope: Scope | None,
    request_id: str | int | None,
    token: AccessToken | None,
    *,
    can_ask: bool,
) -> RequestFacts:
    """Collect the facts of a request on a connection with known client info.

    Args:
        connection: The connection.
        scope: The request over HTTP, as in ASGI, if it came so.
        request_id: Id of the request.
        token: The verified access token, where there is one.
        can_ask: Whether the client can be asked something while it waits.
    """
    # A client of sessions says it once, in its handshake.
    announced = connection.client_params, connection.client_capabilities
    cached = connection.state.get(_KEPT)
    if cached is None or cached[0] != announced:
        cached = connection.state[_KEPT] = announced, _announced(connection)
    info, able = cached[1]
    return RequestFacts(
        request_id=request_id,
        protocol=connection.protocol_version,
        session_id=session_of(connection, scope),
        transport="streamable-http" if scope is not None else "stdio",
        client_info=info,
        client_capabilities=able,
        token=token.model_dump(mode="json") if token else None,
        headers=_headers(scope),
        can_send_request=can_ask,
    )


def direct_facts(
    scope: Scope | None, request_id: str | int, params: Mapping[str, Any], token: AccessToken | None
) -> RequestFacts:
    """Collect the facts of a request of the modern era that bypassed the SDK."""
    meta = params["_meta"]
    info, able = _identity(json.dumps([meta.get(CLIENT_INFO_META_KEY), meta[CLIENT_CAPABILITIES_META_KEY]]))
    return RequestFacts(
        request_id=request_id,
        protocol=meta[PROTOCOL_VERSION_META_KEY],
        session_id=str(uuid.uuid4()),
        transport="streamable-http" if scope is not None else "stdio",
        client_info=info,
        client_capabilities=able,
        token=token.model_dump(mode="json") if token else None,
        headers=_headers(scope),
    )


@lru_cache(maxsize=64)
def _identity(envelope: str) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return a client's info as the SDK parses it; a client sends equal info each time."""
    return _announced(Connection.from_envelope(LATEST_MODERN_VERSION, *json.loads(envelope)))


def _announced(connection: Connection) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return name and capabilities of a client as it has given them."""
    info = connection.client_params.client_info if connection.client_params else None
    able = connection.client_capabilities
    return (
        info.model_dump(by_alias=True, mode="json", exclude_none=True) if info else None,
        able.model_dump(by_alias=True, mode="json", exclude_none=True) if able else None,
    )


def _headers(scope: Scope | None) -> list[tuple[str, str]] | None:
    """Return a request's headers as a tool may see them: without the cookie, which is a browser's key."""
    if scope is None:
        return None
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name.lower() != b"cookie"
    ]
