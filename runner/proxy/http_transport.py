"""Streamable HTTP to a server behind the proxy, with events of any length that the answer bound allows."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import TransportOptions
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from runner.proxy.answer_bound import AnswerBound

__all__ = ["HttpTransport"]


class HttpTransport(ClientTransport):
    """Connection to one URL.

    FastMCP 4.1 cannot lift the bound of 1 MiB for an event, and most servers send results as events. The
    HTTP client bounds what it reads instead.
    """

    def __init__(self, url: str, headers: Mapping[str, str], bound: AnswerBound) -> None:
        self._url = url
        self._headers = dict(headers)
        self._bound = bound

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Any
    ) -> AsyncIterator[ClientSession]:
        """Connect; yields the session, which ends with the connection."""
        kind = (transport_options or TransportOptions()).session_class
        async with (
            self._bound.client(self._headers) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=None) as (read, write),
            kind(read, write, **session_kwargs) as session,
        ):
            yield session
