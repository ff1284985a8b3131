"""The tools with which a model reads the resources that `runner serve` offers: of the tool file, and ours.

They are those of `runner proxy`, under the name of the file's server, and offered where the operator wants
them. Nothing that was read is kept for the next read: a tool file does not say when a resource changes.

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
    """The resources of one toolset, as a model may read them.

    Attributes:
        toolset: The tool files.
        guard: The output guard.
    """

    toolset: Toolset
    guard: OutputGuard

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools as `tools/list` has them; one of the file's of the same name hides ours."""
        if not self.toolset.settings.resource_tools or not self.guard.config.resources.enabled:
            return []
        known = self.toolset.catalog.tools
        return [tool for tool in resource_tools(self._namespace()) if tool["name"] not in known]

    def has(self, tool: str) -> bool:
        """Return whether one of them is called so."""
        # Most names do without the list.
        return ".resources_" in tool and any(ours["name"] == tool for ours in self.tools())

    async def result(self, call: GuardedCall, arguments: object, ask: Ask) -> dict[str, Any]:
        """Return the wire result of a call of one of them, guarded.

        Args:
            call: The call.
            arguments: What the tool is called with.
            ask: Answers `resources/list` and its kind, as for the client itself.
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
