"""Tools with which a model reads the resources of `runner serve`: those of the tool file, and ours.

They are those of `runner proxy`, under the name of the file's server, and listed if the operator enables
them. Reads are not cached: a tool file sends no notification when a resource changes.

Source: document 004, sections 2.4 and 3.5; requirements S4-34 to S4-38.
"""

from dataclasses import dataclass
from typing import Any

from runner.output_guard.guard import GuardedCall, OutputGuard
from runner.protocol.resource_tools import (
    Ask,
    Reader,
    Remote,
    RemoteError,
    RemoteResources,
    namespace_of,
    resource_result,
    resource_tools,
)
from runner.toolset.toolset import Toolset

__all__ = ["OwnResources"]


@dataclass(frozen=True, slots=True)
class OwnResources:
    """The resources of one toolset, for reading by a model.

    Attributes:
        toolset: The tool files.
        guard: The output guard.
    """

    toolset: Toolset
    guard: OutputGuard

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools as entries of `tools/list`; a tool of the file with an equal name hides ours."""
        if not self.toolset.settings.resource_tools or not self.guard.config.resources.enabled:
            return []
        known = self.toolset.catalog.tools
        return [tool for tool in resource_tools(self._namespace()) if tool["name"] not in known]

    def has(self, tool: str) -> bool:
        """Return whether one of them has this name."""
        # Most names do without the list.
        return ".resources_" in tool and any(ours["name"] == tool for ours in self.tools())

    async def result(self, call: GuardedCall, arguments: object, ask: Ask) -> dict[str, Any]:
        """Return the wire result of a call of one of them, guarded.

        Args:
            call: The call.
            arguments: Arguments of the tool.
            ask: Answers `resources/list` and similar requests, as for the client itself.
        """
        namespace = self._namespace()
        ours = RemoteResources(server=namespace, config=self.guard.config)
        act = call.tool.rpartition(".")[2]
        try:
            made = await resource_result(act, arguments, ours, Remote(ask), Reader.of(self.guard, call))
        except RemoteError as error:
            made = {"content": [{"type": "text", "text": str(error)}], "isError": True}
        return await self.guard.message(made or {"content": []}, call, media_stay=False)

    def _namespace(self) -> str:
        return namespace_of(self.toolset.catalog.name)
