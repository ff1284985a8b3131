"""Rules on widgets: what the hosts that show them refuse, found in the text of a file and in what it offers.

The text tells where it stands; what a file puts together as it is loaded, only loading it shows.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.check.bindings import argument
from runner.check.offers import Offer
from runner.check.rules import Finding
from runner.check.source import Function, SourceFile, own_nodes
from runner.check.widget_facts import (
    UNKNOWN,
    WidgetFault,
    allowed_hosts,
    invocation_fault,
    mime_fault,
    page_faults,
    tool_faults,
)
from runner.check.written import Written
from runner.contract.widget_dialects import MCP_APP, OUTPUT_TEMPLATE, RESOURCE_URI, SCHEME, SKYBRIDGE

__all__ = ["WidgetRules", "seen_of_widgets"]

_TOOLS = frozenset({"tool", "Tool", "FunctionTool"})
_RESOURCES = {
    "resource": MCP_APP,
    "TextResource": "text/plain",
    "FileResource": "text/plain",
    "FunctionResource": "text/plain",
}
"""What makes a resource, each with the media type that it has by default; for `resource` at `ui://`."""

_WIDGET = frozenset({"runner.widgets.Widget", "runner.widgets.widget.Widget"})
_APP_KEYS = {
    "resource_uri": "resourceUri",
    "visibility": "visibility",
    "csp": "csp",
    "permissions": "permissions",
}


@dataclass(frozen=True, slots=True)
class _Page:
    """A resource at a `ui://` address."""

    uri: str
    mime: str
    node: ast.AST


class WidgetRules:
    """Finds what hosts refuse of the widgets of one file."""

    def __init__(self, source: SourceFile, written: Written) -> None:
        self._source = source
        self._written = written
        self._calls = [node for node in source.nodes if isinstance(node, ast.Call)]

    def all(self) -> Iterator[Finding]:
        """Yield everything that hosts refuse, as far as it is written in the file."""
        used: dict[str, str] = {}
        for call in self._calls:
            if _name(call) in _TOOLS:
                yield from self._tool(call, used)
            elif _name(call) == "tool_meta":
                yield from self._invocation(call)
            elif self._source.dotted(call.func) in _WIDGET:
                yield from self._widget(call)
        for call in self._calls:
            if _name(call) in _RESOURCES and (page := self._page(call)) is not None:
                fault = mime_fault(page.mime, page.uri, used_as=used.get(page.uri))
                if fault is not None:
                    yield _at(page.node, fault)
                yield from self._content(call)

    def _tool(self, call: ast.Call, used: dict[str, str]) -> Iterator[Finding]:
        """Yield the faults of a registration, and note in `used` in which dialect it names which page."""
        given = argument(call, -1, "meta")
        if given is not None and isinstance(meta := self._written.value(given), Mapping):
            _note(meta, used)
            for fault in tool_faults(meta):
                yield _at(self._written.at(given, fault.path), fault)
        app = self._written.followed(argument(call, -1, "app"))
        if isinstance(app, ast.Call) and _name(app) == "AppConfig":
            words = {_APP_KEYS[word.arg]: word.value for word in app.keywords if word.arg in _APP_KEYS}
            ui = {key: self._written.value(value) for key, value in words.items()}
            _note({"ui": ui}, used)
            for fault in tool_faults({"ui": ui}):
                yield _at(words.get(fault.path[-1], app), fault)

    def _invocation(self, call: ast.Call) -> Iterator[Finding]:
        for word in call.keywords:
            if word.arg in ("invoking", "invoked") and isinstance(
                text := self._written.value(word.value), str
            ):
                key = f"openai/toolInvocation/{word.arg}"
                if any(tool_faults({key: text})):
                    yield _at(word.value, invocation_fault(text, key))

    def _widget(self, call: ast.Call) -> Iterator[Finding]:
        given = argument(call, -1, "html")
        html, hosts = self._written.page(given), self._hosts(argument(call, -1, "csp"))
        if given is not None and html is not None and hosts is not None:
            for fault in page_faults(html, hosts):
                yield _at(given, fault)

    def _hosts(self, given: ast.expr | None) -> frozenset[str] | None:
        """Return the hosts that a `Csp` names to load from; None if that is not written."""
        if given is None:
            return frozenset()
        csp = self._written.followed(given)
        if not isinstance(csp, ast.Call) or _name(csp) != "Csp":
            return None
        resources = argument(csp, -1, "resources")
        domains = [] if resources is None else self._written.value(resources)
        if not isinstance(domains, list) or UNKNOWN in domains:
            return None
        return allowed_hosts({"ui": {"csp": {"resourceDomains": domains}}})

    def _page(self, call: ast.Call) -> _Page | None:
        given, mime = argument(call, 0, "uri"), argument(call, -1, "mime_type")
        uri = self._written.value(given)
        if not isinstance(uri, str) or not uri.startswith(SCHEME):
            return None
        said = _RESOURCES[_name(call)] if mime is None else self._written.value(mime)
        return _Page(uri, said, mime or call) if isinstance(said, str) else None

    def _content(self, call: ast.Call) -> Iterator[Finding]:
        """Yield what the page of a resource loads from elsewhere."""
        given = argument(call, -1, "meta")
        meta = {} if given is None else self._written.value(given)
        if not isinstance(meta, Mapping) or _is_partly_unknown(meta):
            return
        for expression in self._contents(call):
            for fault in page_faults(self._written.page(expression) or "", allowed_hosts(meta)):
                yield _at(expression, fault)

    def _contents(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yield the expressions that are the content of a resource."""
        for word in call.keywords:
            if word.arg in ("text", "path"):
                yield word.value
        for function in self._source.nodes:
            if isinstance(function, Function) and call in function.decorator_list:
                for node in own_nodes(function):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield node.value


def seen_of_widgets(
    hello: Mapping[str, Any], offers: Sequence[Offer], source: SourceFile, known: frozenset[str]
) -> Iterator[Finding]:
    """Yield what hosts refuse of what a loaded file offers.

    Args:
        hello: What the file's program said of it.
        offers: What its text defines.
        source: The text.
        known: Rules that the text broke already, which it shows better.
    """
    lines = {offer.name: offer.function for offer in offers}
    for tool in hello.get("tools", ()):
        meta = tool.get("_meta")
        for fault in tool_faults(meta) if isinstance(meta, Mapping) else ():
            if fault.rule not in known:
                yield _at(lines.get(str(tool.get("name")), source.tree), fault)
    for page in hello.get("pages", ()):
        for fault in page_faults(page["text"], allowed_hosts(page["meta"])):
            if fault.rule not in known:
                yield _at(source.tree, fault)


def _note(meta: Mapping[str, Any], used: dict[str, str]) -> None:
    ui = meta.get("ui")
    named = [(meta.get(OUTPUT_TEMPLATE), SKYBRIDGE), (meta.get(RESOURCE_URI), MCP_APP)]
    named += [(ui.get("resourceUri"), MCP_APP)] if isinstance(ui, Mapping) else []
    used |= {uri: mime for uri, mime in named if isinstance(uri, str)}


def _is_partly_unknown(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "**" in value or any(_is_partly_unknown(item) for item in value.values())
    return value is UNKNOWN or (isinstance(value, list) and any(map(_is_partly_unknown, value)))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _at(node: ast.AST, fault: WidgetFault) -> Finding:
    return Finding.at(node, fault.rule, fault.message, fault.cure)
