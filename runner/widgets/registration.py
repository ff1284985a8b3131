"""Widgets on a FastMCP server: their pages in both dialects, and metadata of their tools.

It runs in the process of the author's file. The runner's host reads the pages once, when the file is loaded,
and serves them itself; under plain FastMCP they are ordinary resources.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastmcp import FastMCP
from fastmcp.resources import Resource, ResourceTemplate, TextResource
from fastmcp.server.middleware import Middleware
from fastmcp.server.transforms import GetToolNext, Transform
from fastmcp.tools import Tool
from fastmcp.utilities.versions import VersionSpec
from pydantic import AnyUrl

from runner.contract.widget_dialects import (
    MCP_APP,
    SCHEMA_DIALECT,
    SCHEME,
    SKYBRIDGE,
    TWIN_TEMPLATE,
    page_uri,
    templates_of,
    unversioned,
    with_pages,
)
from runner.widgets.widget import Widget

__all__ = ["WidgetPage", "add_widgets", "mounted_pages", "served_pages"]


class WidgetPage(TextResource):
    """A page at one of its two addresses; it never changes while the file is loaded."""

    twin: str

    def get_meta(self) -> dict[str, Any]:
        """Return its `_meta` for lists, equal to that in reads: FastMCP's own keys would make them differ."""
        return dict(self.meta or {})


class _Addresses(ResourceTemplate):
    """Unlisted addresses of widgets: the second one, and any with `?v=…` appended."""

    pages: dict[str, WidgetPage]

    def matches(self, uri: str) -> dict[str, Any] | None:
        """Return the parameters of an address, or None if no page has it."""
        return super().matches(uri) if unversioned(uri) in self.pages else None

    async def create_resource(self, uri: str, params: dict[str, Any]) -> Resource:
        """Return the page."""
        return self.pages[unversioned(uri)].model_copy(update={"uri": AnyUrl(uri)})


class _EachTool(Transform):
    """Transform that replaces each tool of a server by the result of a function."""

    def __init__(self, shown: Callable[[Tool], Tool]) -> None:
        self._shown = shown

    async def list_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        return [self._shown(tool) for tool in tools]

    async def get_tool(
        self, name: str, call_next: GetToolNext, *, version: VersionSpec | None = None
    ) -> Tool | None:
        tool = await call_next(name, version=version)
        return None if tool is None else self._shown(tool)


class _Listing(_EachTool):
    """Transform that lists tools with widgets in their schema dialect, and hides addresses of pages."""

    async def list_resource_templates(
        self, templates: Sequence[ResourceTemplate]
    ) -> Sequence[ResourceTemplate]:
        return [template for template in templates if not isinstance(template, _Addresses)]


def mounted_pages(prefix: str) -> Transform:
    """Return a transform that sets the addresses of pages in the tools of a mounted server."""

    def address(uri: str) -> str:
        return uri.replace(SCHEME, f"{SCHEME}{prefix}/", 1) if uri.startswith(SCHEME) else uri

    def moved(tool: Tool) -> Tool:
        if not templates_of(tool.meta):
            return tool
        return tool.model_copy(update={"meta": with_pages(tool.meta or {}, address)})

    return _EachTool(moved)


def add_widgets(server: FastMCP, widgets: Iterable[Widget]) -> None:
    """Register the widgets of a server: call it once, with all widgets of its file.

    Args:
        server: The server of the tool file.
        widgets: The widgets that its tools name in their `meta`.

    Raises:
        ValueError: Two widgets have one name.
        OSError: The file of a page cannot be read.
    """
    pages: dict[str, WidgetPage] = {}
    for widget in widgets:
        if widget.uri in pages:
            raise ValueError(f"there are two widgets named {widget.name!r}; give one of them another name")
        text = widget.page()
        for uri, mime in ((widget.uri, SKYBRIDGE), (widget.twin_uri, MCP_APP)):
            pages[uri] = WidgetPage(
                uri=AnyUrl(uri),
                name=widget.name,
                description=widget.description,
                mime_type=mime,
                text=text,
                twin=widget.twin_uri,
                meta=widget.resource_meta(),
            )
        server.add_resource(pages[widget.uri])
    for template, mime in ((page_uri("{name}").removesuffix(".html"), SKYBRIDGE), (TWIN_TEMPLATE, MCP_APP)):
        server.add_template(
            _Addresses(name=template, uri_template=template, mime_type=mime, parameters={}, pages=pages)
        )
    server.add_transform(_Listing(_in_dialect))


def _in_dialect(tool: Tool) -> Tool:
    """Return a tool with a widget in the dialect of its schema; any other unchanged."""
    if not templates_of(tool.meta) or "$schema" in tool.parameters:
        return tool
    parameters: Mapping[str, Any] = {"$schema": SCHEMA_DIALECT, **tool.parameters}
    return tool.model_copy(update={"parameters": parameters})


async def served_pages(server: FastMCP) -> list[dict[str, Any]]:
    """Return the pages, with their addresses, that the host can serve without a request to the server.

    Empty if a middleware of the author must handle every read.
    """
    if any(_sees_reads(type(middleware)) for middleware in server.middleware):
        return []
    listed = await server.list_resources(run_middleware=False)
    return [
        {
            "text": page.text,
            "meta": page.get_meta(),
            "uris": {str(page.uri): page.mime_type, page.twin: MCP_APP},
        }
        for page in listed
        if isinstance(page, WidgetPage)
    ]


def _sees_reads(kind: type[Middleware]) -> bool:
    hooks = ("__call__", "on_message", "on_request", "on_read_resource")
    own = kind.__module__.partition(".")[0] in ("fastmcp", "runner")
    return not own and any(getattr(kind, hook) is not getattr(Middleware, hook) for hook in hooks)
