"""Requests of MCP clients in both protocol eras, as sent on the wire."""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "DISCOVER",
    "INITIALIZE",
    "INITIALIZED",
    "META",
    "VERSION",
    "Headers",
    "initialize",
    "modern",
    "plain",
    "usual",
]

Headers = Iterable[tuple[str, str]]

VERSION = "2026-07-28"
META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
DISCOVER = {"jsonrpc": "2.0", "id": "d", "method": "server/discover", "params": {"_meta": META}}


def initialize(version: str, **able: Any) -> dict[str, Any]:
    """Return the first request of a client of the handshake era, with its capabilities."""
    about = {"name": "tests", "version": "1"}
    params = {"protocolVersion": version, "capabilities": able, "clientInfo": about}
    return {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params}


INITIALIZE = initialize("2025-11-25")
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def modern(tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """Return a call of the later era."""
    return plain(tool, arguments, params={"_meta": META, **more.pop("params", {})}, **more)


def plain(tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """Return a call of the handshake era, which has no envelope."""
    params = {"name": tool, "arguments": arguments or {}, **more.pop("params", {})}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **more}


def usual(tool: str, **more: str) -> list[tuple[str, str]]:
    """Return the HTTP headers of a call of the later era; `more` adds to or replaces them."""
    named = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return list(named.items())
