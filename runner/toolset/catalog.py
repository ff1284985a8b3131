"""Catalog of a tool file: its server's identity and its tools. Made from a zygote's hello."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from runner.contract.login_challenge import SCHEMES_META
from runner.contract.widget_dialects import NO_WIDGETS, WidgetRights, unversioned, widget_rights
from runner.formats.schema_types import types_of_schema
from runner.settings.execution import ExecutionSettings

__all__ = [
    "FILE_ARGUMENTS",
    "GENERATED",
    "LINK_ARGUMENTS",
    "WISHES_META",
    "Catalog",
    "ToolSpec",
    "refused_jobs",
]

FILE_ARGUMENTS = ("filename", "filenames")
"""The only argument names that are resolved to staged input files (S1-28 to S1-30)."""

WISHES_META = "toolcell"
"""Key of a tool's `meta` for its author's wishes on how it runs."""

GENERATED = ("keep", "report", "ignore")
"""Treatments of files that a call writes and does not return."""

_MIRRORED = '"x-mcp-header"'

_WORKERS = ("fresh", "shared", "own")

LINK_ARGUMENTS = ("file_names",)
"""Arguments whose files are always passed as download links (C1)."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """Facts of one tool, cached, since each call reads them.

    Attributes:
        name: Its name on the wire.
        parameters: JSON Schema of its arguments.
        output_schema: JSON Schema of its structured result, if it declares one.
        security: Security schemes that it declares, any of which suffices; none if anybody may call it.
        widgets: Rights that it declares for calls by widgets.
        wants_worker: The worker that its author wants for a call: `fresh`, one that has served none before;
            `shared`, one for all calls of a user; `own`, one that serves no other call meanwhile; else None.
        identity: Name of the parameter that is filled in with the caller's name.
        wants_background: Whether its author wants background work to continue between calls.
        generated: The author's choice for files that it writes and does not return: `keep`, `report` or
            `ignore`; None without a choice.
        mirrors_arguments: Whether clients must repeat some of its arguments in HTTP headers.
        is_idempotent: Whether its author declares that it may be repeated, by the `idempotentHint` of MCP.
    """

    name: str
    parameters: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    security: tuple[Mapping[str, Any], ...] = ()
    widgets: WidgetRights = NO_WIDGETS
    mirrors_arguments: bool = False
    wants_worker: str | None = None
    identity: str = "username"
    wants_background: bool = False
    generated: str | None = None
    is_idempotent: bool = False

    @classmethod
    def of(cls, tool: Mapping[str, Any], *, identity: str = "username") -> "ToolSpec":
        """Return the spec of a tool from its entry in an MCP list.

        Args:
            tool: The tool, as in the list.
            identity: Name of the parameter that is filled in with the caller's name.

        Raises:
            AttributeError: It is not a tool; only a hostile tool file can cause this or the other errors.
            KeyError: As `AttributeError`.
            TypeError: As `AttributeError`.
            ValueError: As `AttributeError`.
        """
        return cls(
            name=str(tool["name"]),
            parameters=dict(tool["inputSchema"]),
            output_schema=tool.get("outputSchema"),
            security=_schemes(tool.get("_meta")),
            widgets=widget_rights(tool),
            mirrors_arguments=_MIRRORED in json.dumps(tool["inputSchema"]),
            wants_worker=wish if (wish := _wish(tool.get("_meta"), "worker")) in _WORKERS else None,
            identity=identity,
            wants_background=_wish(tool.get("_meta"), "background") is True,
            is_idempotent=(_mapping(tool.get("annotations")) or {}).get("idempotentHint") is True,
            generated=wish if (wish := _wish(tool.get("_meta"), "generated")) in GENERATED else None,
        )

    def declares(self, argument: str) -> bool:
        """Return whether the tool has this argument."""
        properties = self.parameters.get("properties")
        return isinstance(properties, Mapping) and argument in properties

    @cached_property
    def types_of(self) -> Callable[[str], frozenset[str]]:
        """Returns the JSON types that an argument allows, computed at its first use."""
        return cache(
            lambda argument: types_of_schema(self.parameters["properties"][argument], self.parameters)
        )

    @cached_property
    def takes_username(self) -> bool:
        """True if the tool gets the identity, and with it a home that it may write."""
        return self.declares(self.identity)

    @cached_property
    def takes_files(self) -> bool:
        """True if the tool gets input files."""
        return any(self.declares(name) for name in FILE_ARGUMENTS)

    @cached_property
    def takes_links(self) -> bool:
        """True if the tool gets download links, regardless of the settings (C1)."""
        return any(self.declares(name) for name in LINK_ARGUMENTS)

    @cached_property
    def wraps_result(self) -> bool:
        """True if its bare result is wrapped as `{"result": value}`: FastMCP marks it, the SDK wraps it."""
        schema = self.output_schema or {}
        fields = schema.get("properties")
        return bool(schema.get("x-fastmcp-wrap-result")) or (
            isinstance(fields, Mapping)
            and fields.keys() == {"result"}
            and schema.get("required") == ["result"]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Description of a tool file by its zygote.

    Attributes:
        name: Name of its server.
        version: Version of its server.
        instructions: Instructions of its server.
        website_url: Website of its server.
        icons: Icons of its server, as on the wire.
        capabilities: Capabilities that its server declares.
        tools: Its tools by name.
        pages: Contents of its widgets by their addresses, as `resources/read` returns them.
        routes: Paths of the HTTP routes that it adds, each with its methods.
        methods: Methods that it answers besides those of the protocol.
        tasks: The tools that may become tasks of MCP, each with its poll interval in milliseconds.
        auth: The token verifier of its file: `kind`, and `jwt` with the settings for JSON web tokens.
    """

    name: str
    version: str | None
    instructions: str | None
    website_url: str | None
    icons: tuple[Mapping[str, Any], ...]
    capabilities: Mapping[str, Any]
    tools: Mapping[str, ToolSpec]
    pages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    routes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    methods: frozenset[str] = frozenset()
    auth: Mapping[str, Any] | None = None
    tasks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_hello(cls, hello: Mapping[str, Any], *, identity: str = "username") -> "Catalog":
        """Make a catalog of the hello of `runner.worker.program`.

        Args:
            hello: The hello, which it returned when it loaded.
            identity: Name of the parameter that is filled in with the caller's name.

        Raises:
            ValueError: It is not a catalog; only a hostile tool file can cause that.
        """
        try:
            tools = [ToolSpec.of(tool, identity=identity) for tool in hello["tools"]]
            return cls(
                name=str(hello["name"]),
                version=hello["version"],
                instructions=hello["instructions"],
                website_url=hello["website_url"],
                icons=tuple(hello["icons"]),
                capabilities=dict(hello["capabilities"]),
                tools={tool.name: tool for tool in tools},
                pages={uri: item for page in hello.get("pages", ()) for uri, item in _contents(page)},
                tasks={str(name): int(poll) for name, poll in hello.get("tasks", {}).items()},
                auth=_mapping(hello.get("auth")),
                methods=frozenset(map(str, hello.get("methods", ()))),
                routes=tuple(map(_route, hello.get("routes", ()))),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the tool file's catalog is malformed: {error}") from error

    def page(self, uri: str) -> dict[str, Any] | None:
        """Return the answer to reading a widget's page, or None if `uri` is not the address of one."""
        content = self.pages.get(unversioned(uri))
        return None if content is None else {"contents": [{"uri": uri, **content}]}


def refused_jobs(settings: ExecutionSettings, tools: Mapping[str, ToolSpec]) -> list[str]:
    """Return the tools whose authors request background jobs that the settings do not allow."""
    return [name for name, tool in tools.items() if tool.wants_background and not settings.lets_go_on(name)]


def _wish(meta: Any, name: str) -> Any:
    """Return an author's wish in a tool's `meta`: `{"toolcell": {NAME: …}}`."""
    ours = meta.get(WISHES_META) if isinstance(meta, Mapping) else None
    return ours.get(name) if isinstance(ours, Mapping) else None


def _schemes(meta: Any) -> tuple[Mapping[str, Any], ...]:
    schemes = meta.get(SCHEMES_META) if isinstance(meta, Mapping) else None
    return (
        tuple(scheme for scheme in schemes if isinstance(scheme, Mapping))
        if isinstance(schemes, list)
        else ()
    )


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _route(route: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    return str(route["path"]), tuple(map(str, route["methods"]))


def _contents(page: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for uri, mime in page["uris"].items():
        yield uri, {"mimeType": str(mime), "text": str(page["text"]), "_meta": dict(page["meta"])}
