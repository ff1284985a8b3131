"""Calls of tools that reach FastMCP's own handler without the chains of middleware in front of it.

In most servers those chains hold nothing that the author has put there: only what FastMCP and the SDK have
put in themselves, which does nothing for the call of a tool, and what we watch with. Walking them is half of
what a worker does for an empty tool. What finds the tool, runs it, and makes an answer or an error of it is
FastMCP's own, as ever.

Whether a server is such a one is asked anew with each call, since authors add middleware, subclass, replace
methods, and instrument FastMCP at any time.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import Any

import fastmcp
from fastmcp import FastMCP
from fastmcp.server.dependencies import _dispatching_tool_call
from fastmcp.server.extensions import _extension_tool_call_scope
from fastmcp.server.low_level import FastMCPServerMiddleware
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.dereference import DereferenceRefsMiddleware
from fastmcp.tools import ToolResult
from fastmcp.utilities.versions import VersionSpec
from mcp.server.runner import ServerRunner, _extract_meta
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.transport_context import TransportContext
from mcp_types import CallToolRequestParams, methods

__all__ = ["CALL_TOOL", "CallWatcher", "DirectToolCalls"]

CALL_TOOL = "tools/call"

# What is passed over, as it was before any author's file was imported.
_PASSED_OVER = tuple(
    (owner, name, getattr(owner, name))
    for owner, name in (
        (FastMCP, "_on_call_tool"),
        (FastMCP, "call_tool"),
        (FastMCP, "_dispatch_component_middleware"),
        (FastMCP, "_run_middleware"),
        (FastMCP, "_compose_tool_call_interceptors"),
        (FastMCPServerMiddleware, "__call__"),
        (ServerRunner, "on_request"),
        (ServerRunner, "_on_request"),
        (ServerRunner, "_compose_server_middleware"),
    )
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
        server = self._server
        low = server._mcp_server
        handler = low.get_request_handler(CALL_TOOL)
        return (
            type(server) is FastMCP
            and server.middleware == self._without_effect
            and len(low.middleware) == 1
            and type(low.middleware[0]) is FastMCPServerMiddleware
            and not server._extensions
            # A span is made in front of the handler; where none is made, the trace goes on within it.
            and fastmcp.settings.telemetry_mode != "native"
            and handler is not None
            and handler.handler == server._on_call_tool
            and "call_tool" not in vars(server)
            and all(getattr(owner, name) is before for owner, name, before in _PASSED_OVER)
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
        root = self._server._mcp_server.middleware[0]
        with root._apply_shared_context(self._server):  # type: ignore[attr-defined] # its type: see would_pass
            result = await FastMCP._on_call_tool(self, context, asked)  # type: ignore[arg-type] # see the class
        return runner._serialize(CALL_TOOL, version, result)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], *, version: VersionSpec | None
    ) -> ToolResult:
        """Find a tool and run it, as the server does behind its middleware."""
        server = self._server
        with _dispatching_tool_call(), _extension_tool_call_scope(server):
            running = server.call_tool(name, arguments, version=version, run_middleware=False)
            result = await self._watcher.seen(running, tool=name)
        rebound: ToolResult = await server._rebind_prefab_tool_names(result)
        return rebound
