"""Handlers and middleware of the server in front.

Requests are relayed at the innermost position of the SDK's middleware, so that authentication and the sealing
of request state stay where the SDK puts them.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.context import reset_transport, set_transport
from mcp.server import streamable_http
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp_types import (
    JSONRPCMessage,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)
from pydantic import ConfigDict, TypeAdapter

from runner.protocol.internals.connection import note_level
from runner.worker.internals.low_level import low_level

__all__ = [
    "come_first",
    "hide_bodies_in_errors",
    "relay_innermost",
    "say_version",
    "serve_streams",
    "serve_subscriptions",
    "use_input_schemas",
]

Relay = Callable[[ServerRequestContext[Any, Any], CallNext], Coroutine[Any, Any, HandlerResult]]


async def serve_streams(app: FastMCP, incoming: Any, outgoing: Any) -> None:
    """Serve one client over a pair of streams, as `FastMCP.run_stdio_async` does over its own pair.

    Args:
        app: The application.
        incoming: Yields `SessionMessage`, or the exception that a message could not be read for.
        outgoing: Sends `SessionMessage`.
    """
    token = set_transport("stdio")
    try:
        low = low_level(app)
        # It enters the lifespan of the application.
        await low.run(incoming, outgoing, low.create_initialization_options())
    finally:
        reset_transport(token)


def relay_innermost(app: FastMCP, relay: Relay, *, around: Relay) -> None:
    """Let `relay` answer requests, inside authentication and the sealing of request state.

    Args:
        app: The application.
        relay: Answers.
        around: Goes around all that the application does for a request.
    """
    middleware: list[Any] = low_level(app).middleware
    middleware.extend((note_level, relay))
    middleware.insert(0, around)


def come_first(app: FastMCP, relay: Relay) -> None:
    """Let `relay` see every request before anything else of the application does."""
    middleware: list[Any] = low_level(app).middleware
    middleware.insert(0, relay)


def say_version(app: FastMCP, version: str | None) -> None:
    """Set the application's version to that of its server, even if empty.

    FastMCP would say its own in place of an empty one; a server of the SDK says the empty one.
    """
    if version is not None:
        low_level(app).version = version


def hide_bodies_in_errors() -> None:
    """Keep the SDK from printing an invalid body in its error, which takes a second."""
    adapter = TypeAdapter[JSONRPCMessage](JSONRPCMessage, config=ConfigDict(hide_input_in_errors=True))
    vars(streamable_http)["jsonrpc_message_adapter"] = adapter


def use_input_schemas(app: FastMCP, schemas: Callable[[str], Mapping[str, Any] | None]) -> None:
    """Set the input schema of a tool in the HTTP transport, which would list all tools for it."""
    low_level(app).get_tool_input_schema = schemas


def serve_subscriptions(
    app: FastMCP,
    *,
    subscribe: Callable[[ServerRequestContext[Any, Any], SubscribeRequestParams], Awaitable[Any]],
    unsubscribe: Callable[[ServerRequestContext[Any, Any], UnsubscribeRequestParams], Awaitable[Any]],
    listen: Callable[[ServerRequestContext[Any, Any], SubscriptionsListenRequestParams], Awaitable[Any]],
) -> None:
    """Answer subscriptions, which FastMCP does not, in both eras; this sets the capability too."""
    low = low_level(app)
    low.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
    low.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, listen)
