"""The runner's own resources and prompts: the contract, and the available-files block.

They follow those of the tool file, on the last page of a list, and only if the file has none of the same URI
or name: the file's own always takes precedence, also for reading. `tools/list` is never changed. The setting
`extras` switches them off.

Source: `runner.contract.models`; document 001, section 4; requirement S1-38; `docs/guide.md`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.contract.available_files import available_files, files_block
from runner.contract.models import CONTRACT_URI, contract_schema
from runner.files.file_events import FILES_URI
from runner.toolset.call_services import CallServices
from runner.users.identity import User

__all__ = ["AVAILABLE_FILES", "EXTRAS", "Extras", "Text"]

AVAILABLE_FILES = "available_files"
"""Name of the prompt that lists the user's files."""

Text = Callable[[CallServices, User], Awaitable[str]]
"""Returns the text of a resource or prompt for one user; it may raise `CallError`."""

_OF_CONTRACT = "What a tool of this server returns: JSON Schema of the result contract, version 2.1."
_OF_FILES = "The user's files, by the names that tools take in `filename` and `filenames`."
_NONE = "There are no files in the current session."
# Key of a list and of the ids in it, by the listing method and by the reading method.
_LISTS = {
    "tools/list": ("tools", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "prompts/list": ("prompts", "name"),
}
_READS = {"resources/read": ("resources", "uri"), "prompts/get": ("prompts", "name")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """The runner's own resources and prompts.

    Attributes:
        listed: Items of lists, by the key of their list.
        texts: The text of each resource and prompt, by its name.
    """

    listed: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    texts: Mapping[str, Text] = field(default_factory=dict)

    def merged(self, method: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the file's answer to a list request with ours appended; any other answer unchanged."""
        key, name = _LISTS.get(method, ("", ""))
        own = result.get(key)
        if result.get("nextCursor") is not None or not isinstance(own, list):
            return dict(result)
        named = {item.get(name) for item in own if isinstance(item, Mapping)}
        ours = (item for item in self.listed.get(key, ()) if item[name] not in named)
        return {**result, key: [*own, *ours]}

    async def answer(
        self, method: str, params: Mapping[str, Any], service: CallServices, user: User
    ) -> dict[str, Any] | None:
        """Return the wire result of reading one of ours, or None for other resources and prompts.

        Raises:
            CallError: Its text could not be made.
        """
        key, name = _READS.get(method, ("", ""))
        item = next((item for item in self.listed.get(key, ()) if item[name] == params.get(name)), None)
        if item is None:
            return None
        text = await self.texts[item["name"]](service, user)
        if key == "resources":
            return {"contents": [{"uri": item["uri"], "mimeType": item["mimeType"], "text": text}]}
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        return {"description": item["description"], "messages": messages}


async def _contract(_service: CallServices, _user: User) -> str:
    return json.dumps(contract_schema(), indent=2)


async def _block(service: CallServices, user: User) -> str:
    return files_block(available_files(await service.files(user).all()))


async def _message(service: CallServices, user: User) -> str:
    # A message must not be empty.
    return await _block(service, user) or _NONE


EXTRAS = Extras(
    listed={
        "resources": [
            {
                "uri": CONTRACT_URI,
                "name": "contract",
                "description": _OF_CONTRACT,
                "mimeType": "application/schema+json",
            },
            {
                "uri": FILES_URI,
                "name": "files",
                "description": _OF_FILES,
                "mimeType": "text/plain",
            },
        ],
        # The host answers reads of it itself.
        "resourceTemplates": [
            {
                "uriTemplate": "artifact://{id}{?offset,length}",
                "name": "artifact",
                "description": "A file, or what was taken out of a result: whole, or a range of its bytes.",
            }
        ],
        "prompts": [
            {
                "name": AVAILABLE_FILES,
                "description": "Tells the model which files there are, by the names that tools take.",
                "arguments": [],
            }
        ],
    },
    texts={"contract": _contract, "files": _block, AVAILABLE_FILES: _message},
)
"""Components of the runner itself, in the order of their lists."""
