"""Seam between a call and a fleet: execution on other machines."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runner.settings.named_limits import Counted
from runner.steps.listener import CallListener
from runner.steps.request import Completed, Request
from runner.toolset.catalog import ToolSpec

__all__ = ["RemoteExecutor"]


class RemoteExecutor(Protocol):
    """Protocol of an executor on other machines, for requests that this host has admitted."""

    async def count(self, limits: Sequence[Counted]) -> None:
        """Count a call for what may be called how often.

        Args:
            request: The call.
            tool: Name of its tool.
            limits: The limits by name that it counts for.

        Raises:
            CallError: `E_BUSY`; that is used up.
        """

    async def call(
        self, request: Request, spec: ToolSpec, listener: CallListener, limits: Sequence[Counted]
    ) -> Completed:
        """Execute a tool call, from staging to routing.

        Raises:
            CallError: It ended with an error, or could not begin.
            WireError: The tool's server answered with a JSON-RPC error.
        """

    async def relay(
        self, request: Request, listener: CallListener, limits: Sequence[Counted]
    ) -> Mapping[str, Any]:
        """Answer any other request.

        Raises:
            CallError: It was not answered.
            WireError: The server answered with a JSON-RPC error.
        """
