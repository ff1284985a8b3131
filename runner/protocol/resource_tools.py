"""Resources of an MCP server, remote or our own, in a form for models.

Lists are followed to their last page. Results have no binary data: a blob is stored and referenced, short
text is returned. Reads are cached until the server reports a change of the resource, or the store removes the
content. A link in a tool's result is read only if its size is known and below the operator's limit, 0 by
default.

Source: document 004, sections 2.4, 3.5 and 5.7; requirements S4-12, S4-34 to S4-38, S4-81 to S4-84, S4-92
to S4-96, S4-106; rules Q1 to Q4 of the conformance cases.
"""

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mcp.shared.exceptions import MCPError

from runner.errors import CallError, RunnerError
from runner.formats.base64 import canonical
from runner.formats.filenames import name_in_uri, safe_name
from runner.formats.mime import guess
from runner.output_guard.config import GuardConfig
from runner.output_guard.guard import GuardedCall, OutputGuard
from runner.output_guard.pipeline import guard
from runner.output_guard.references import large_text
from runner.output_guard.storing import Find, Keeper, LayerRun, drive
from runner.protocol.visible_offers import visible_list
from runner.store.protocol import ArtifactStore, Record, Scope
from runner.system.turns import in_turns
from runner.users.events import UPDATED
from runner.worker.wire import WireError

__all__ = [
    "MOST_ITEMS",
    "MOST_LIST_BYTES",
    "Ask",
    "InvalidAnswer",
    "Reader",
    "Remote",
    "RemoteError",
    "RemoteResources",
    "blocks_of",
    "namespace_of",
    "pages",
    "resource_result",
    "resource_tools",
]

log = logging.getLogger(__name__)

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Returns the wire result of a method with its params."""

_PAGES = 1000
MOST_ITEMS = 100_000
MOST_LIST_BYTES = 1 << 26
"""Largest list that is assembled from pages, whose number a server could increase without end."""

_CACHED = 1000
_ERROR_CHARS = 1000
_NAMESPACE_CHARS = 40
_NO_CONTENT = "Resource has no content"


class RemoteError(RunnerError):
    """Failure of a remote server: an error as its answer, or no answer; the message has the cause."""


class InvalidAnswer(RemoteError):
    """An answer of a remote server that violates the protocol; the message has the cause."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Source of a server's resources.

    Attributes:
        ask: Returns the wire result of a method with its params.
    """

    ask: Ask

    async def result(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the wire result of a method with its params.

        Raises:
            RemoteError: The server did not answer, or with an error.
        """
        try:
            return await self.ask(method, params)
        except (WireError, CallError, MCPError) as error:
            raise RemoteError(_words(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """User and session of a read.

    Attributes:
        store: The store for content.
        scope: The owner of that content.
        on_stored: Receives the stored records.
    """

    store: ArtifactStore
    scope: Scope
    on_stored: Callable[[Sequence[Record]], None] = lambda _records: None

    @classmethod
    def of(cls, guard: OutputGuard, call: GuardedCall) -> "Reader":
        """Return the reader of a call, whose user is notified of the files that it stores."""
        on_stored = partial(guard.publish_stored, call=call)
        return cls(store=call.files.library.store, scope=call.scope, on_stored=on_stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cached:
    """Result of a read, and the artifacts that it depends on."""

    value: dict[str, Any]
    ids: tuple[str, ...]


_Key = tuple[Scope, str]


@dataclass(slots=True, kw_only=True)
class RemoteResources:
    """The resources of one server.

    Attributes:
        server: Its name.
        config: The output guard's settings.
        publish: Receives events for users' interfaces.
    """

    server: str
    config: GuardConfig
    publish: Callable[[Mapping[str, Any]], None] = lambda _event: None
    _cache: "OrderedDict[_Key, _Cached]" = field(default_factory=OrderedDict)

    async def all(self, remote: Remote) -> list[dict[str, Any]]:
        """Return every resource, of all pages."""
        return await self._list(remote, "resources/list", "resources")

    async def templates(self, remote: Remote) -> list[dict[str, Any]]:
        """Return every template, of all pages."""
        return await self._list(remote, "resources/templates/list", "resourceTemplates")

    async def _list(self, remote: Remote, method: str, key: str) -> list[dict[str, Any]]:
        items = await pages(remote.result, method, key, server=self.server)
        shown = await visible_list(method, {key: items})
        return [dict(item) for item in shown[key] if isinstance(item, Mapping)]

    async def read(self, remote: Remote, uri: str, reader: Reader) -> dict[str, Any]:
        """Return a resource in a form for models.

        One content is an object with `text`, or with `artifact` and `summary`; several are in `contents`.
        A failure of the server is in `error`, and raises nothing.
        """
        key = (reader.scope.owner, uri)
        cached = await self._cached(key, reader)
        if cached is not None:
            return cached
        try:
            answer = await remote.result("resources/read", {"uri": uri})
        except RemoteError as error:
            return {"error": f"{uri} could not be read: {error}"[:_ERROR_CHARS]}
        contents = [item for item in answer.get("contents") or () if isinstance(item, Mapping)]
        problem = _problem(contents)
        if problem is not None:
            return {"error": problem}
        tool = f"{self.server}.read"
        keeper = Keeper(
            config=self.config, store=reader.store, scope=reader.scope, tool=tool, server=self.server
        )
        made = [await self._content(item, keeper) for item in contents]
        reader.on_stored(keeper.stored)
        value = made[0] if len(made) == 1 else {"contents": made}
        if self.config.resources.cache_reads_to_artifacts and not keeper.warnings:
            self._cache[key] = _Cached(value=value, ids=tuple(record.id for record in keeper.stored))
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return value

    async def linked(self, remote: Remote, link: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        """Return a `resource_link` block of a tool's result, with its content if policy allows."""
        size, most = link.get("size"), self.config.resources.auto_read_if_size_under_bytes
        known = isinstance(size, int) and not isinstance(size, bool) and 0 <= size < most
        if link.get("type") != "resource_link" or not known:
            return dict(link)
        read = await self.read(remote, str(link.get("uri")), reader)
        return dict(link) if "error" in read else {**link, **read}

    def updated(self, uri: str) -> None:
        """Drop a resource from the caches of all users, and notify their interfaces."""
        for key in [key for key in self._cache if key[1] == uri]:
            del self._cache[key]
        self.publish({"type": UPDATED, "uri": uri})

    async def _cached(self, key: _Key, reader: Reader) -> dict[str, Any] | None:
        cached = self._cache.get(key)
        if cached is None:
            return None
        for id_ in cached.ids:
            if await reader.store.stat(id_, scope=reader.scope) is None:
                self._cache.pop(key, None)
                return None
        self._cache.move_to_end(key)
        return cached.value

    async def _content(self, item: Mapping[str, Any], keeper: Keeper) -> dict[str, Any]:
        about = {key: value for key, value in item.items() if key not in ("text", "blob", "_meta")}
        if isinstance(item.get("text"), str):
            return about | await self._text(item, keeper)
        made = await self._guarded({"type": "resource", "resource": dict(item)}, keeper)
        return {key: value for key, value in made.items() if key not in ("type", "_meta")}

    async def _text(self, item: Mapping[str, Any], keeper: Keeper) -> dict[str, Any]:
        text: str = item["text"]
        if len(text) > self.config.resources.inline_text_if_under_chars:
            return await drive(_large(text, item), keeper, chars=len(text))
        guarded = await self._guarded(text, keeper)
        return guarded if isinstance(guarded, dict) else {"text": guarded}

    async def _guarded(self, value: Any, keeper: Keeper) -> Any:
        return (await guard(value, keeper)).value


def resource_tools(server: str) -> list[dict[str, Any]]:
    """Return the descriptions of the tools with which a model reads the resources of a server."""
    read = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
    nothing: dict[str, Any] = {"type": "object", "properties": {}}
    read_only = {"readOnlyHint": True}
    rows = (
        ("resources_list", f"List the resources of {server}.", nothing),
        (
            "resources_read",
            f"Read a resource of {server}; large or binary content is kept and referenced.",
            read,
        ),
        ("resources_templates_list", f"List the templates of resources of {server}.", nothing),
    )
    return [
        {
            "name": f"{server}.{name}",
            "description": description,
            "inputSchema": schema,
            "annotations": read_only,
        }
        for name, description, schema in rows
    ]


def namespace_of(name: str) -> str:
    """Return the name prefix of the tools that read a server's resources."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-")[:_NAMESPACE_CHARS] or "server"


async def resource_result(
    act: str, arguments: object, resources: RemoteResources, remote: Remote, reader: Reader
) -> dict[str, Any] | None:
    """Return the result of a call of one of these tools, or None if no tool has that name.

    Args:
        act: The name of the tool, without the prefix of the server.
        arguments: Arguments of the call.
        resources: The resources of the server.
        remote: The source of these resources.
        reader: The user and session that read.

    Raises:
        RemoteError: The resources could not be listed.
    """
    match act:
        case "resources_list":
            value: Any = {"resources": await resources.all(remote)}
        case "resources_templates_list":
            value = {"resourceTemplates": await resources.templates(remote)}
        case "resources_read":
            uri = arguments.get("uri") if isinstance(arguments, Mapping) else None
            value = await resources.read(remote, str(uri), reader)
        case _:
            return None
    content = [{"type": "text", "text": json.dumps(value, ensure_ascii=False)}]
    return {"content": content, "structuredContent": value, "isError": "error" in value}


def blocks_of(linked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the result of `RemoteResources.linked` as content blocks of the protocol."""
    if "contents" in linked:
        link = {key: item for key, item in linked.items() if key != "contents"}
        return [block for item in linked["contents"] for block in blocks_of({**link, "size": None, **item})]
    if "text" in linked:
        resource = {key: linked[key] for key in ("uri", "mimeType", "text") if linked.get(key) is not None}
        return [{"type": "resource", "resource": resource}]
    if "artifact" not in linked:
        return [dict(linked)]
    artifact = linked["artifact"]
    link = {
        "type": "resource_link",
        "uri": f"artifact://{artifact['id']}",
        "name": linked.get("name") or artifact.get("filename") or artifact["id"],
        "description": linked.get("summary"),
        "mimeType": artifact.get("mime_type"),
        "size": artifact.get("size_bytes"),
    }
    return [{key: item for key, item in link.items() if item is not None}]


def _problem(contents: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the reason why contents cannot be read, before any is stored; None if they can."""
    held = [item for item in contents if isinstance(item.get("text"), str) or item.get("blob") is not None]
    if not held:
        return _NO_CONTENT
    for item in held:
        if not isinstance(item.get("text"), str) and canonical(item["blob"]) is None:
            return f"{item.get('uri')} holds a blob that is not base64"
    return None


def _large(text: str, item: Mapping[str, Any]) -> LayerRun[dict[str, Any]]:
    name = safe_name(name_in_uri(item.get("uri")) or "resource.txt")
    declared = item.get("mimeType")
    mime = declared if isinstance(declared, str) and declared else "text/plain"
    find = Find(content=text, mime=mime, name=name if guess(name) == mime else None, where="resource")
    record = yield find
    return large_text(find, record, f"Large text stored as artifact ({len(text)} chars)", text, text)


def _words(error: WireError | CallError | MCPError) -> str:
    if isinstance(error, WireError):
        return str(error.error.get("message"))
    return error.error.message if isinstance(error, MCPError) else error.message


async def pages(ask: Ask, method: str, key: str, *, server: str) -> list[Any]:
    """Return the items of a list, of all its pages up to a bound.

    Args:
        ask: Returns the wire result of a method with its params.
        method: The method of the list.
        key: The key of its items.
        server: The server, for the log.
    """
    found: list[Any] = []
    seen: set[str] = set()
    params: dict[str, Any] = {}
    size = 0
    while True:
        page = await ask(method, params)
        items = page.get(key)
        items = items if isinstance(items, list) else []
        found += items
        async for item in in_turns(items):
            size += len(json.dumps(item))
        if len(found) > MOST_ITEMS or size > MOST_LIST_BYTES:
            facts = {"server": server, "method": method, "items": len(found), "bytes": size}
            log.warning("list truncated", extra=facts)
            return found[:MOST_ITEMS]
        cursor = page.get("nextCursor")
        # A server that repeats a cursor, or never ends, must not keep this loop running for ever.
        if not isinstance(cursor, str) or not cursor or cursor in seen or len(seen) >= _PAGES:
            return found
        seen.add(cursor)
        params = {"cursor": cursor}
