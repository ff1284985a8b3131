"""A request from the host to a worker. Imports no framework, so that `runner call` starts fast."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "FIND_TOOL",
    "LATEST_PROTOCOL",
    "PUBLISHED",
    "ROUTE",
    "ROUTE_HEADERS",
    "ROUTE_HEADERS_BYTES",
    "ROUTE_HEADER_BYTES",
    "SENT_MAX_CHARS",
    "VISIBILITY_SUFFIX",
    "RequestFacts",
    "WireError",
    "full_key",
]

SENT_MAX_CHARS = 80_000
"""Most characters of a text that are sent to the host.

This exceeds the shown length by the length of the longest secret. Otherwise a secret that is cut off here
could be in the shown part, and the host, which masks whole secrets, would miss it.
"""

LATEST_PROTOCOL = "2026-07-28"
"""Protocol version of the host without a client's choice."""

FIND_TOOL = "toolcell/tool"
"""Request of a host for one tool that the file did not have when it was loaded."""

PUBLISHED = "toolcell/published"
"""Notification of a worker when a tool publishes a change of a list or resource."""

ROUTE = "toolcell/route"
"""Request of a host to answer an HTTP request by a route of the file."""

ROUTE_HEADERS = 64
"""Most headers of the answer of such a route."""

ROUTE_HEADER_BYTES = 8 * 1024
"""Longest header of it, name and value."""

ROUTE_HEADERS_BYTES = 16 * 1024
"""Most bytes of all its headers, including dropped ones."""

VISIBILITY_SUFFIX = ":_visibility_rules"
"""Suffix of a session state key that FastMCP reads in every request."""


# Without slots: `vars` returns the object that is sent.
@dataclass(frozen=True, kw_only=True)
class RequestFacts:
    """Facts of a request for its tool. Sent to a worker as a JSON object.

    Attributes:
        request_id: Id of the client's request.
        protocol: Protocol version of the connection.
        session_id: The session, in FastMCP's sense.
        transport: `stdio` or `streamable-http`.
        client_info: Name and version the client gives itself.
        client_capabilities: Capabilities that the client declares.
        token: The verified access token, if there is one.
        headers: HTTP headers, if there are any.
        query: Query string of the HTTP request.
        peer: Address and port of the HTTP client, if known.
        can_send_request: Whether requests can be sent to the client while the call runs.
    """

    request_id: str | int | None
    protocol: str
    session_id: str
    transport: str
    client_info: Mapping[str, Any] | None = None
    client_capabilities: Mapping[str, Any] | None = None
    token: Mapping[str, Any] | None = None
    headers: list[tuple[str, str]] | None = None
    query: str = ""
    peer: tuple[str, int] | None = None
    can_send_request: bool = False


class WireError(Exception):
    """A worker's own server answered with a JSON-RPC error.

    Attributes:
        error: The error object, with `code`, `message` and perhaps `data`.
    """

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.error = dict(error)


def full_key(collection: str | None, key: str) -> str:
    """Return the full name of a session state key, which is unique among all collections."""
    return json.dumps([collection, key])
