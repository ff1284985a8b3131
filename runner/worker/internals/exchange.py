"""The SDK's dispatch context for a relayed request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext

__all__ = ["RelayedExchange"]


@dataclass
class RelayedExchange:
    """The SDK's dispatch context for one relayed request."""

    request_id: str | int | None
    can_send_request: bool
    transport: TransportContext
    message_metadata: ServerMessageMetadata | None
    on_notify: Callable[[str, Mapping[str, Any] | None], Awaitable[None]]
    on_request: Callable[[str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]]
    cancel_requested: anyio.Event = field(default_factory=anyio.Event)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Pass on a notification."""
        await self.on_notify(method, params)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Pass on a request and return its result."""
        if not self.can_send_request:
            raise NoBackChannelError(method)
        return await self.on_request(method, params)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Pass on a report of progress."""
        params = {"progress": progress, "total": total, "message": message}
        await self.on_notify("notifications/progress", {k: v for k, v in params.items() if v is not None})
