"""Seam between a call and a fleet: execution on other machines."""

from collections.abc import Mapping
from typing import Any, Protocol

from runner.steps.listener import CallListener
from runner.steps.request import Completed, Request
from runner.toolset.catalog import ToolSpec

__all__ = ["RemoteExecutor"]


class RemoteExecutor(Protocol):
    """Protocol of an executor on other machines, for requests that this host has admitted."""

    async def call(self, request: Request, spec: ToolSpec, listener: CallListener) -> Completed:
        """Execute a tool call, from staging to routing.

        Raises:
            CallError: It ended with an error, or could not begin.
            WireError: The tool's server answered with a JSON-RPC error.
        """

    async def relay(self, request: Request, listener: CallListener) -> Mapping[str, Any]:
        """Answer any other request.

        Raises:
            CallError: It was not answered.
            WireError: The server answered with a JSON-RPC error.
        """
