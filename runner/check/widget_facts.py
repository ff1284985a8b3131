"""What hosts refuse of a widget, decided on what goes over the wire. Pure; where it stands, others find out.

Source: document 003; MCP Apps 2026-01-26; rules W1 and W2 of the conformance cases; what six hosts accepted.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlsplit

from runner.contract.widget_dialects import (
    INVOCATION_KEYS,
    INVOCATION_MAX_CHARS,
    MCP_APP,
    RESOURCE_URI,
    SKYBRIDGE,
    WIDGET_CSP,
)

__all__ = [
    "UNKNOWN",
    "WidgetFault",
    "allowed_hosts",
    "invocation_fault",
    "mime_fault",
    "page_faults",
    "tool_faults",
]


class _Unknown:
    """A value that only running the file gives."""


UNKNOWN: Final = _Unknown()

_CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
_JS_URL = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["']((?:https?:)?//[^"']+)["']""")
_STYLES = frozenset({"stylesheet", "preload", "modulepreload", "import"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetFault:
    """One thing that hosts refuse.

    Attributes:
        rule: Id of the rule.
        path: Keys that lead to it in what was looked at.
        message: What is there, and what becomes of it.
        cure: What to write instead.
    """

    rule: str
    path: tuple[str, ...] = ()
    message: str
    cure: str


def tool_faults(meta: Mapping[str, Any]) -> Iterator[WidgetFault]:
    """Yield what hosts refuse of the `_meta` of a tool."""
    ui = meta.get("ui", {})
    for path in _misplaced(meta, ui):
        yield WidgetFault(
            rule="widget-csp-on-tool",
            path=path,
            message=f"`{path[-1]}` stands on a tool, where hosts do not look for it",
            cure="declare it with the page: `Widget(csp=…)`, or `_meta` of the resource",
        )
    for key in INVOCATION_KEYS:
        if isinstance(text := meta.get(key), str) and not 0 < len(text) <= INVOCATION_MAX_CHARS:
            yield invocation_fault(text, key)
    said = ui if isinstance(ui, Mapping) else {"**": ui}
    named = RESOURCE_URI in meta or "resourceUri" in said
    # What is merged in unseen may well say it.
    if named and not {"visibility", "**"} & said.keys() and "**" not in meta:
        yield visibility_fault(("ui",) if "ui" in meta else (RESOURCE_URI,))


def invocation_fault(text: str, key: str) -> WidgetFault:
    """Return the fault of a text that hosts show while a tool runs."""
    return WidgetFault(
        rule="widget-invocation-text",
        path=(key,),
        message=f"hosts show 1 to {INVOCATION_MAX_CHARS} characters while a tool runs; this has {len(text)}",
        cure="say it shorter, such as `Drawing the chart...`",
    )


def visibility_fault(path: tuple[str, ...]) -> WidgetFault:
    """Return the fault of a tool that does not say who may call it."""
    return WidgetFault(
        rule="widget-visibility",
        path=path,
        message="nothing says whether the page may call this tool, and hosts differ in what they then assume",
        cure='add `"visibility": ["model"]`, or `["model", "app"]` if the page may call it',
    )


def mime_fault(mime: str, uri: str, *, used_as: str | None) -> WidgetFault | None:
    """Return the fault of a page with a media type that its hosts do not show, or None if it has none.

    Args:
        mime: The media type.
        uri: The address of the page.
        used_as: The media type that the key wants with which a tool names the page, if one does.
    """
    wanted = (used_as,) if used_as else (SKYBRIDGE, MCP_APP)
    if mime in wanted:
        return None
    return WidgetFault(
        rule="widget-mime",
        message=f"hosts do not show {uri} as {mime!r}; they want {' or '.join(map(repr, wanted))}",
        cure="declare the page as a `Widget`, which serves it in both, or write the media type exactly so",
    )


def page_faults(html: str, hosts: frozenset[str]) -> Iterator[WidgetFault]:
    """Yield what a page loads from hosts that it has not declared; `hosts` are those that it has."""
    for url in dict.fromkeys(_remote(html)):
        host = urlsplit(url, scheme="https").netloc.lower()
        if not _covered(host, hosts):
            yield WidgetFault(
                rule="widget-remote-code",
                message=f"the page loads {url}, which hosts block: its CSP does not name {host}",
                cure="put it into the page itself, or name the host in `Csp(resources=…)`",
            )


def allowed_hosts(meta: Mapping[str, Any]) -> frozenset[str]:
    """Return the hosts that the `_meta` of a page lets it load from."""
    ui = meta.get("ui")
    csp = ui.get("csp") if isinstance(ui, Mapping) else None
    lists = []
    for given, key in ((meta.get(WIDGET_CSP), "resource_domains"), (csp, "resourceDomains")):
        if isinstance(given, Mapping) and isinstance(given.get(key), list):
            lists.append(given[key])
    return frozenset(str(domain).rpartition("://")[2].lower() for domains in lists for domain in domains)


def _misplaced(meta: Mapping[str, Any], ui: Any) -> Iterator[tuple[str, ...]]:
    if WIDGET_CSP in meta:
        yield (WIDGET_CSP,)
    for key in ("csp", "permissions"):
        if isinstance(ui, Mapping) and key in ui:
            yield ("ui", key)


def _covered(host: str, hosts: frozenset[str]) -> bool:
    return host in hosts or any(
        name.startswith("*.") and host.endswith(name[1:]) and len(host) > len(name) - 1 for name in hosts
    )


def _remote(html: str) -> list[str]:
    reader = _Loads()
    reader.feed(html)
    reader.close()
    return [url.strip() for url in reader.urls if re.match(r"\s*(?:https?:)?//", url, re.IGNORECASE)]


class _Loads(HTMLParser):
    """Gathers what a page loads as code or as style."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.urls: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note scripts, style sheets and styles of elements."""
        given = {name: value or "" for name, value in attrs}
        self._inside = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.urls.append(given.get("src", ""))
        if tag == "link" and _STYLES & set(given.get("rel", "").lower().split()):
            self.urls.append(given.get("href", ""))
        self.urls += _CSS_URL.findall(given.get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        """Leave a script or a style."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Note what scripts and styles import."""
        pattern = {"script": _JS_URL, "style": _CSS_URL}.get(self._inside)
        self.urls += pattern.findall(data) if pattern else []
