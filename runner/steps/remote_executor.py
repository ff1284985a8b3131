"""Where requests are executed, if not on this machine: the seam between a call and a fleet."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runner.settings.named_limits import Counted
from runner.steps.listener import CallListener
from runner.steps.request import Completed, Request
from runner.toolset.catalog import ToolSpec

__all__ = ["RemoteExecutor"]


class RemoteExecutor(Protocol):
    """Where requests are executed, if not on this machine, once this host has let them in."""

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
        """Have a tool call executed, from its staging to its routing.

        Raises:
            CallError: It ended with an error, or could not begin.
            WireError: The tool's server answered with a JSON-RPC error.
        """

    async def relay(
        self, request: Request, listener: CallListener, limits: Sequence[Counted]
    ) -> Mapping[str, Any]:
        """Have any other request answered.

        Raises:
            CallError: It was not answered.
            WireError: The server answered with a JSON-RPC error.
        """
