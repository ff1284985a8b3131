"""The only access to the SDK's server inside a FastMCP server, which FastMCP does not document."""

from typing import Any

from fastmcp import FastMCP
from mcp.server.lowlevel import Server

__all__ = ["low_level"]


def low_level(server: FastMCP) -> Server[Any]:
    """Return the server of the SDK inside one of FastMCP."""
    return server._mcp_server
