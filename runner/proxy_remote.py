"""A session with a remote MCP server: raw requests over FastMCP's client, which owns transport and handshake.

What comes back is the server's own result, key by key. The only module that knows how a client can fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
from fastmcp import Client
from fastmcp.exceptions import FastMCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    PROTOCOL_VERSION_META_KEY,
    Request,
)
from pydantic import RootModel

from runner.remote_resources import RemoteError

__all__ = ["FAILURES", "ConnectionLost", "RemoteSession"]

FAILURES = (
    MCPError,
    FastMCPError,
    RuntimeError,
    ValueError,
    OSError,
    httpx2.HTTPError,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    anyio.EndOfStream,
)
"""All that a client raises where the server, or the way to it, is at fault; malformed answers included."""

# These describe the connection of our own client, not the one to the server.
_OF_CONNECTIONS = (
    PROTOCOL_VERSION_META_KEY,
    CLIENT_INFO_META_KEY,
    CLIENT_CAPABILITIES_META_KEY,
    "progressToken",
    "toolcell/artifacts",
)
_GONE = ("session terminated", "session not found", "connection closed")


class ConnectionLost(RemoteError):
    """The connection ended before the answer came; whether the server did what was asked is not known."""


class _Wire(RootModel[dict[str, Any]]):
    """Any result, as it came."""


class _Raw(Request[dict[str, Any], str]):
    """Any request."""


@dataclass(frozen=True, slots=True)
class RemoteSession:
    """A connected client. A `runner.remote_resources.Remote`.

    Attributes:
        client: The client.
        answer_s: How long an answer may take where nobody watches over the request.
    """

    client: "Client[Any]"
    answer_s: float = 30.0

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, progress: ProgressFnT | None = None
    ) -> dict[str, Any]:
        """Send a request and return the server's own result.

        Raises:
            MCPError: The server answered with an error.
            ConnectionLost: It did not answer.
            RemoteError: Its answer breaks the protocol.
        """
        sent = {key: value for key, value in (params or {}).items() if key != "_meta"}
        meta = {k: v for k, v in ((params or {}).get("_meta") or {}).items() if k not in _OF_CONNECTIONS}
        if meta:
            sent["_meta"] = meta
        raw = _Raw(method=method, params=sent)
        try:
            # A call that is watched over ends by the ladder.
            limit_s = self.answer_s if progress is None else None
            result = await self.client.session.send_request(
                raw, _Wire, request_read_timeout_seconds=limit_s, progress_callback=progress
            )
        except MCPError as error:
            said = error.error.message.lower()
            if error.error.code == CONNECTION_CLOSED or any(words in said for words in _GONE):
                raise ConnectionLost(error.error.message) from error
            raise
        except ValueError as error:
            raise RemoteError(f"its answer to {method} breaks the protocol: {str(error)[:300]}") from error
        except FAILURES as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error
        return result.root

    async def list_resources(self, cursor: str | None) -> Mapping[str, Any]:
        """Return the wire result of `resources/list`."""
        return await self._answer("resources/list", {"cursor": cursor} if cursor else {})

    async def list_templates(self, cursor: str | None) -> Mapping[str, Any]:
        """Return the wire result of `resources/templates/list`."""
        return await self._answer("resources/templates/list", {"cursor": cursor} if cursor else {})

    async def read(self, uri: str) -> Mapping[str, Any]:
        """Return the wire result of `resources/read`."""
        return await self._answer("resources/read", {"uri": uri})

    async def _answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self.request(method, params)
        except MCPError as error:
            raise RemoteError(error.error.message) from error
