"""The runner's own resources and prompts, offered beside those of the tool file.

They come after the file's, on the last page of a list, and only where the file has none of the same
URI or name: what the file offers always wins, also when it is read. `tools/list` is never touched.
The setting `extras` switches them off.

One is added by making a value and naming it in `EXTRAS` of `runner.server.host`:

    async def overview(service: Service, user: User) -> str: ...

    FILES = ExtraResource(
        uri="runner://files", name="files", description="…", mime="text/plain", text=overview
    )
    AVAILABLE = ExtraPrompt(name="available_files", description="…", text=overview)

`text` is awaited for each read, with the identity that the host found; it may raise `CallError`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.steps.request import Service
from runner.users.identity import User

__all__ = ["ExtraPrompt", "ExtraResource", "ExtraTemplate", "Extras", "Text"]

Text = Callable[[Service, User], Awaitable[str]]
"""Says the text of an extra for one user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraResource:
    """A resource of the runner's own; its URI begins with `runner://`."""

    uri: str
    name: str
    description: str
    mime: str
    text: Text

    def listed(self) -> dict[str, Any]:
        """Return its item of `resources/list`."""
        return {
            "uri": self.uri,
            "name": self.name,
            "description": self.description,
            "mimeType": self.mime,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraTemplate:
    """A template of resources that the host reads itself."""

    uri_template: str
    name: str
    description: str

    def listed(self) -> dict[str, Any]:
        """Return its item of `resources/templates/list`."""
        return {"uriTemplate": self.uri_template, "name": self.name, "description": self.description}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPrompt:
    """A prompt of the runner's own: one message of the user, without arguments."""

    name: str
    description: str
    text: Text

    def listed(self) -> dict[str, Any]:
        """Return its item of `prompts/list`."""
        return {"name": self.name, "description": self.description, "arguments": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """All that the runner offers of its own, in the order in which it is listed."""

    resources: tuple[ExtraResource, ...] = ()
    templates: tuple[ExtraTemplate, ...] = ()
    prompts: tuple[ExtraPrompt, ...] = ()

    def merged(self, method: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the file's answer to a list request with ours behind it; any other answer as it is."""
        match method:
            case "resources/list":
                return _joined(result, "resources", "uri", [item.listed() for item in self.resources])
            case "resources/templates/list":
                ours = [item.listed() for item in self.templates]
                return _joined(result, "resourceTemplates", "uriTemplate", ours)
            case "prompts/list":
                return _joined(result, "prompts", "name", [item.listed() for item in self.prompts])
            case _:
                return dict(result)

    async def answer(
        self, method: str, params: Mapping[str, Any], service: Service, user: User
    ) -> dict[str, Any] | None:
        """Return the wire result of reading one of ours, or None for other resources.

        Raises:
            CallError: Its text could not be made.
        """
        if method == "resources/read":
            resource = next((item for item in self.resources if item.uri == params.get("uri")), None)
            if resource is not None:
                text = await resource.text(service, user)
                return {"contents": [{"uri": resource.uri, "mimeType": resource.mime, "text": text}]}
        if method == "prompts/get":
            prompt = next((item for item in self.prompts if item.name == params.get("name")), None)
            if prompt is not None:
                content = {"type": "text", "text": await prompt.text(service, user)}
                messages = [{"role": "user", "content": content}]
                return {"description": prompt.description, "messages": messages}
        return None


def _joined(result: Mapping[str, Any], items: str, key: str, ours: list[dict[str, Any]]) -> dict[str, Any]:
    own = result.get(items)
    if result.get("nextCursor") is not None or not isinstance(own, list):
        return dict(result)
    named = {item.get(key) for item in own if isinstance(item, Mapping)}
    return {**result, items: [*own, *(item for item in ours if item[key] not in named)]}
