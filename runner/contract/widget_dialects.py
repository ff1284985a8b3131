"""The two dialects of widgets, as facts: media types, addresses and keys. Pure.

ChatGPT's hosts read the keys `openai/…` and require `text/html+skybridge`; hosts of MCP Apps read `ui` and
require `text/html;profile=mcp-app`. No media type suits both, so one page has two addresses.

Source: document 003; MCP Apps 2026-01-26; requirements S3-87 to S3-100, decisions C34, C37, C40, C47.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CODE_CALL_META",
    "INVOCATION_KEYS",
    "INVOCATION_MAX_CHARS",
    "MCP_APP",
    "NO_WIDGETS",
    "OUTPUT_TEMPLATE",
    "RESOURCE_URI",
    "SCHEMA_DIALECT",
    "SCHEME",
    "SKYBRIDGE",
    "TWIN_TEMPLATE",
    "WIDGET_CALL_META",
    "WIDGET_CSP",
    "WidgetRights",
    "is_for_page",
    "page_uri",
    "templates_of",
    "twin_uri",
    "unversioned",
    "widget_rights",
    "with_pages",
]

SKYBRIDGE = "text/html+skybridge"
MCP_APP = "text/html;profile=mcp-app"

SCHEME = "ui://"
TWIN_TEMPLATE = "ui://widget/mcp-app/{name}"
"""Second address of a page, in the dialect of MCP Apps. It is not listed."""

OUTPUT_TEMPLATE = "openai/outputTemplate"
RESOURCE_URI = "ui/resourceUri"
WIDGET_CSP = "openai/widgetCSP"
INVOCATION_KEYS = ("openai/toolInvocation/invoking", "openai/toolInvocation/invoked")
INVOCATION_MAX_CHARS = 64
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


WIDGET_ACCESSIBLE = "openai/widgetAccessible"
VISIBILITY = "openai/visibility"
# By this capability, a client announces that it hides tools from models as `ui.visibility` demands.
_UI_EXTENSION = "io.modelcontextprotocol/ui"

WIDGET_CALL_META = "toolcell/widget"
"""Key of `_meta` of a call by a widget: `asked` if a person consented to it, else `unasked`."""

CODE_CALL_META = "toolcell/code"
"""Key of `_meta` of a call by a model's code: in code mode, clients do not hide tools from models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetRights:
    """Callers that a tool allows. A tool without a declaration allows models, but no widgets.

    Attributes:
        for_model: Whether models may call it.
        may_call: Whether widgets may call it.
        may_destroy: Whether it may be destructive, so that a person decides on each call.
        only_pages: Whether `ui.visibility` allows widgets and no models.
    """

    for_model: bool = True
    may_call: bool = False
    may_destroy: bool = True
    only_pages: bool = False


NO_WIDGETS = WidgetRights()
"""Rights of a tool that declares none."""


def widget_rights(tool: Mapping[str, Any]) -> WidgetRights:
    """Return the rights of models and widgets that a tool declares in `tools/list`.

    A tool is not destructive if it declares that it only reads or only adds. By MCP's default, a tool that
    declares neither is destructive.
    """
    meta, annotations = tool.get("_meta"), tool.get("annotations")
    ui = meta.get("ui") if isinstance(meta, Mapping) else None
    named = ui.get("visibility") if isinstance(ui, Mapping) else None
    accessible = isinstance(meta, Mapping) and meta.get(WIDGET_ACCESSIBLE) is True
    harmless = isinstance(annotations, Mapping) and (
        annotations.get("readOnlyHint") is True or annotations.get("destructiveHint") is False
    )
    may_call = "app" in named if isinstance(named, list) else accessible
    is_private = isinstance(meta, Mapping) and meta.get(VISIBILITY) == "private"
    for_model = "model" in named if isinstance(named, list) else not is_private
    only_pages = isinstance(named, list) and may_call and not for_model
    return WidgetRights(
        for_model=for_model, may_call=may_call, may_destroy=not harmless, only_pages=only_pages
    )


def is_for_page(params: Mapping[str, Any], capabilities: Mapping[str, Any] | None) -> bool:
    """Return whether the result of a tool that only widgets may call reaches no model of this client.

    A client that ignores `ui.visibility` would show the result to its model. So the client has to announce
    MCP Apps, or to mark the call as one of a widget.

    Args:
        params: Params of the `tools/call`.
        capabilities: Capabilities of the client.
    """
    extensions, meta = (capabilities or {}).get("extensions"), params.get("_meta")
    announces = isinstance(extensions, Mapping) and _UI_EXTENSION in extensions
    return announces or (isinstance(meta, Mapping) and WIDGET_CALL_META in meta)


def page_uri(name: str) -> str:
    """Return the address of a page in the dialect of ChatGPT."""
    return f"ui://widget/{name}.html"


def twin_uri(name: str) -> str:
    """Return the address of the same page in the dialect of MCP Apps."""
    return TWIN_TEMPLATE.replace("{name}", f"{name}.html")


def unversioned(uri: str) -> str:
    """Return an address without the suffix that hosts append to bypass caches, such as `?v=1.0.0`."""
    return uri.partition("#")[0].partition("?")[0]


def templates_of(meta: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the addresses of pages that the `_meta` of a tool names, in either dialect."""
    metadata = meta or {}
    ui = metadata.get("ui")
    named = (
        metadata.get(OUTPUT_TEMPLATE),
        ui.get("resourceUri") if isinstance(ui, Mapping) else None,
        metadata.get(RESOURCE_URI),
    )
    return tuple(dict.fromkeys(uri for uri in named if isinstance(uri, str)))


def with_pages(meta: Mapping[str, Any], address: Callable[[str], str]) -> dict[str, Any]:
    """Return the `_meta` of a tool with every address of a page in it replaced."""
    changed: dict[str, Any] = {
        key: address(meta[key]) for key in (OUTPUT_TEMPLATE, RESOURCE_URI) if isinstance(meta.get(key), str)
    }
    ui = meta.get("ui")
    if isinstance(ui, Mapping) and isinstance(ui.get("resourceUri"), str):
        changed["ui"] = {**ui, "resourceUri": address(ui["resourceUri"])}
    return {**meta, **changed}
