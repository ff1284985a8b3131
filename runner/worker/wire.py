"""A request on its way from the host to a worker. Imports no framework, so that `runner call` starts fast."""

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
"""So many characters of a text go to the host.

More than anybody is shown by the length of the longest secret: half of one, cut off here, would be in what
is shown, and no secret to the host, which takes whole ones out.
"""

LATEST_PROTOCOL = "2026-07-28"
"""Protocol version of the host without a client's choice."""

FIND_TOOL = "toolcell/tool"
"""The request by which a host asks a worker for one tool that the file did not have when it was loaded."""

PUBLISHED = "toolcell/published"
"""Notification of a worker when a tool publishes a change of a list or resource."""

ROUTE = "toolcell/route"
"""The request by which a host has an HTTP request answered by a route that a file adds."""

ROUTE_HEADERS = 64
"""Most headers of the answer of such a route."""

ROUTE_HEADER_BYTES = 8 * 1024
"""Longest header of it, name and value."""

ROUTE_HEADERS_BYTES = 16 * 1024
"""Most bytes of all headers of it, those that are dropped included."""

VISIBILITY_SUFFIX = ":_visibility_rules"
"""FastMCP reads a session state key that ends like this in every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Facts of a request for its tool. A JSON object on its way to a worker.

    Attributes:
        request_id: Id of the client's request.
        protocol: Protocol version of the connection.
        session_id: The session, in FastMCP's sense.
        transport: `stdio` or `streamable-http`.
        client_info: Name and version the client gives itself.
        client_capabilities: What the client says it can do.
        token: The verified access token, where there is one.
        headers: HTTP headers, where there are any.
        can_send_request: Whether the client can be asked something while the call runs.
    """

    request_id: str | int | None
    protocol: str
    session_id: str
    transport: str
    client_info: Mapping[str, Any] | None = None
    client_capabilities: Mapping[str, Any] | None = None
    token: Mapping[str, Any] | None = None
    headers: list[tuple[str, str]] | None = None
    can_send_request: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a worker gets them; `RequestFacts(**facts)` is the way back."""
        return {name: getattr(self, name) for name in self.__slots__}


class WireError(Exception):
    """A worker's own server answered with a JSON-RPC error.

    Attributes:
        error: The error object, with `code`, `message` and perhaps `data`.
    """

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.error = dict(error)


def full_key(collection: str | None, key: str) -> str:
    """Return the full name of a key of session state, which no key of another collection has."""
    return json.dumps([collection, key])
