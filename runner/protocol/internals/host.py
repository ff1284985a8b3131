"""Handlers and middleware of the server that clients connect to.

Requests are relayed at the innermost position of the SDK's middleware, so that authentication and the sealing
of request state stay where the SDK puts them.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.context import reset_transport, set_transport
from mcp.server import streamable_http
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp_types import JSONRPCMessage
from pydantic import ConfigDict, TypeAdapter

from runner.protocol.internals.connection import note_level
from runner.worker.internals.low_level import low_level

__all__ = [
    "hide_bodies_in_errors",
    "relay_innermost",
    "say_version",
    "serve_streams",
    "use_input_schemas",
]

Relay = Callable[[ServerRequestContext[Any, Any], CallNext], Coroutine[Any, Any, HandlerResult]]


async def serve_streams(app: FastMCP, incoming: Any, outgoing: Any) -> None:
    """Serve one client over a pair of streams, as `FastMCP.run_stdio_async` does over its own pair.

    Args:
        app: The application.
        incoming: Yields `SessionMessage`, or an exception for an unreadable message.
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
        relay: Answers requests.
        around: Outermost middleware, around everything that the application does for a request.
    """
    middleware: list[Any] = low_level(app).middleware
    middleware.extend((note_level, relay))
    middleware.insert(0, around)


def say_version(app: FastMCP, version: str | None) -> None:
    """Set the application's version to that of its server, even if empty.

    FastMCP would send its own version in place of an empty one; a server of the SDK sends the empty one.
    """
    if version is not None:
        low_level(app).version = version


def hide_bodies_in_errors() -> None:
    """Keep the SDK from printing an invalid body in its error, which takes a second."""
    adapter = TypeAdapter[JSONRPCMessage](JSONRPCMessage, config=ConfigDict(hide_input_in_errors=True))
    vars(streamable_http)["jsonrpc_message_adapter"] = adapter


def use_input_schemas(app: FastMCP, schemas: Callable[[str], Mapping[str, Any] | None]) -> None:
    """Give the HTTP transport a lookup of input schemas; its own would list all tools for each."""
    low_level(app).get_tool_input_schema = schemas
