"""Calls of tools that reach FastMCP's own handler without the chains of middleware in front of it.

In most servers those chains hold nothing that the author has put there: only what FastMCP and the SDK have
put in themselves, which does nothing for the call of a tool, and what we watch with. Walking them is half of
what a worker does for an empty tool. What finds the tool, runs it, and makes an answer or an error of it is
FastMCP's own, as ever.

Whether a server is such a one is asked anew with each call, since authors add middleware, subclass, replace
methods, and instrument FastMCP at any time. The contexts that the chains are walked in are entered all the
same: what a tool leaves to be closed is closed in them, and what it returns is written in them.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fastmcp
from fastmcp import Context, FastMCP
from fastmcp.server.dependencies import _dispatching_tool_call, bind_request_context
from fastmcp.server.extensions import _extension_tool_call_scope
from fastmcp.server.low_level import FastMCPServerMiddleware
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.dereference import DereferenceRefsMiddleware
from fastmcp.tools import ToolResult
from fastmcp.utilities.versions import VersionSpec
from mcp.server import runner as sdk_runner
from mcp.server.context import ServerRequestContext
from mcp.server.runner import ServerRunner, _extract_meta
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.transport_context import TransportContext
from mcp_types import CallToolRequestParams, methods

__all__ = ["CALL_TOOL", "CallWatcher", "DirectToolCalls"]

CALL_TOOL = "tools/call"

_OF_THE_SERVER = (
    "_on_call_tool",
    "call_tool",
    "_dispatch_component_middleware",
    "_run_middleware",
    "_compose_tool_call_interceptors",
)
# What is passed over, and its code, as they were before any author's file was imported.
_PASSED_OVER: tuple[tuple[object, str, Any, Any], ...] = tuple(
    (owner, name, getattr(owner, name), getattr(getattr(owner, name), "__code__", None))
    for owner, names in (
        (FastMCP, _OF_THE_SERVER),
        (FastMCPServerMiddleware, ("__call__", "_dispatch_component")),
        (Middleware, ("__call__", "_dispatch_handler", "on_message", "on_request", "on_call_tool")),
        (ServerRunner, ("_on_request", "_compose_server_middleware")),
        (sdk_runner, ("_apply_middleware",)),
    )
    for name in names
)
# Whoever instruments Python programs as they start comes before us.
_IS_UNTOUCHED = all(
    code is not None
    and not hasattr(passed, "__wrapped__")
    and passed.__module__.startswith(("fastmcp.", "mcp."))
    for _, _, passed, code in _PASSED_OVER
)


class CallWatcher(Middleware, ABC):
    """The middleware that we add, the innermost one; for a direct call it is asked itself."""

    @abstractmethod
    async def seen(self, running: Awaitable[Any], *, tool: str | None = None) -> Any:
        """Await a running tool."""


class DirectToolCalls:
    """Calls of one server's tools.

    It stands in for the server in FastMCP's handler of `tools/call`, which asks it for its name and to call.

    Args:
        server: The server, changed for a worker already.
        watcher: The one of its middleware that we have added.
    """

    def __init__(self, server: FastMCP, watcher: CallWatcher) -> None:
        self._server = server
        self._watcher = watcher
        self._without_effect = [
            one
            for one in server.middleware
            if one is watcher or type(one) is DereferenceRefsMiddleware  # It is for lists.
        ]

    @property
    def name(self) -> str:
        """Return the name of the server."""
        return self._server.name

    def would_pass(self) -> bool:
        """Say whether nothing in front of the handler would do anything for a call."""
        try:
            return self._holds_nothing_of_the_author() and _is_as_it_was()
        except Exception:  # noqa: BLE001 - the author has made something else of it: so it is walked
            return False

    def _holds_nothing_of_the_author(self) -> bool:
        server = self._server
        low = server._mcp_server
        handler = low.get_request_handler(CALL_TOOL)
        return (
            type(server) is FastMCP
            # By identity: middleware of authors may say that it equals anything.
            and [*map(id, server.middleware)] == [*map(id, self._without_effect)]
            and not any(vars(one) for one in self._without_effect if one is not self._watcher)
            and [*map(type, low.middleware)] == [FastMCPServerMiddleware]
            and not server._extensions
            # A span is made in front of the handler; where none is made, the trace goes on within it.
            and fastmcp.settings.telemetry_mode != "native"
            and handler is not None
            and handler.handler == server._on_call_tool
            and handler.params_type is CallToolRequestParams
            and vars(server).keys().isdisjoint(_OF_THE_SERVER)
        )

    async def answer(
        self,
        runner: ServerRunner[Any],
        exchange: DispatchContext[TransportContext],
        params: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the result of a call as it goes to the client.

        Raises:
            ValidationError: The parameters are none of a call; nothing has been done.
            MCPError: The server answers with an error of JSON-RPC.
        """
        version = runner.connection.protocol_version
        methods.validate_client_request(CALL_TOOL, version, params)
        asked = CallToolRequestParams.model_validate(params, by_name=False)
        context = runner._make_context(exchange, CALL_TOOL, params, _extract_meta(params), version)
        with self._around(context):
            result = await FastMCP._on_call_tool(self, context, asked)  # type: ignore[arg-type] # see the class
            return runner._serialize(CALL_TOOL, version, result)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], *, version: VersionSpec | None
    ) -> ToolResult:
        """Find a tool and run it, as the server does behind its middleware."""
        server = self._server
        async with Context(fastmcp=server) as context:
            # Middleware is told of them, and a request in which they are of another kind is refused by that.
            _ = context.input_responses
            with _dispatching_tool_call(), _extension_tool_call_scope(server):
                running = server.call_tool(name, arguments, version=version, run_middleware=False)
                result = await self._watcher.seen(running, tool=name)
            rebound: ToolResult = await server._rebind_prefab_tool_names(result)
            return rebound

    @contextmanager
    def _around(self, context: ServerRequestContext[Any, Any]) -> Iterator[None]:
        """Enter what the server's own middleware enters around a request."""
        server = self._server
        root: Any = server._mcp_server.middleware[0]
        with (
            root._apply_shared_context(server),
            bind_request_context(context),
            root._seam_span(server, context),
        ):
            yield


def _is_as_it_was() -> bool:
    """Say whether nobody has put anything in the place of what is passed over."""
    return _IS_UNTOUCHED and all(
        getattr(owner, name) is passed and passed.__code__ is code
        for owner, name, passed, code in _PASSED_OVER
    )
