"""Rules on a loaded tool file: its watched import, its tools as clients list them, and its widget pages.

Each raises LookupError, TypeError or ValueError if a report or a component is malformed, which only a hostile
tool file can cause.

Source: document 003; MCP Apps 2026-01-26; rules W1 and W2 of the conformance cases.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from runner.check.source import Finding, SourceFile
from runner.contract import widget_dialects as dialects

__all__ = ["page_faults", "seen_at_import", "tool_faults"]

# Processor time of the file's own top-level code, and of its import statements: pandas takes a third.
_SLOW_CODE_S, _SLOW_LIBRARIES_S = 1.0, 3.0

# All bounded, since an author's page may be long and malformed.
_MOST_CHARS = 1 << 18
_ADDRESS = r"""\s{0,99}["']?\s{0,99}((?:https?:)?//[^"'\s>)]{1,2000})"""
_REST = r"[^<>]{0,1000}"
_IN_TAGS = re.compile(
    rf"<script\b{_REST}\ssrc\s{{0,9}}={_ADDRESS}"
    rf"|<link\b(?={_REST}\srel\s{{0,9}}={_REST}(?:stylesheet|preload|import)){_REST}\shref\s{{0,9}}={_ADDRESS}"
    rf"|<{_REST}\sstyle\s{{0,9}}={_REST}url\({_ADDRESS}",
    re.IGNORECASE,
)
_BLOCK = re.compile(r"<(script|style)\b[^<>]{0,2000}>(.*?)(?:</\1|\Z)", re.IGNORECASE | re.DOTALL)
_IN_BLOCK = {
    "style": re.compile(rf"(?:url\(|@import\s){_ADDRESS}", re.IGNORECASE),
    "script": re.compile(r"""(?:\bfrom|\bimport)\s{0,99}\(?\s{0,99}["']((?:https?:)?//[^"']{1,2000})["']"""),
}


def seen_at_import(hello: Mapping[str, Any], source: SourceFile, *, threads: int) -> Iterator[Finding]:
    """Yield findings from the report of the watched import, and the number of threads left after it."""
    watched = hello["watched"]
    seconds = {int(line): float(spent) for line, spent in watched["seconds"]}
    started = [int(line) for line in watched["threads"]]
    imports = {
        line
        for node in source.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = {line: spent for line, spent in seconds.items() if line not in imports}
    libraries = {line: seconds.get(line, 0.0) for line in sorted(imports)}
    own = "move it into a tool, or into a function with `functools.cache` that a tool calls"
    other = "import less of it, or import it in the one tool that needs it"
    for spent, limit_s, cure in ((code, _SLOW_CODE_S, own), (libraries, _SLOW_LIBRARIES_S, other)):
        if sum(spent.values()) > limit_s:
            message = (
                f"its import takes {max(spent.values()):.1f} s of processor time, for which first calls wait"
            )
            yield Finding("slow-import", _longest(spent), message, cure)
    if threads > 1:
        subject, line = "a thread is started here while the file is imported", min(started, default=0)
        if not line:
            # Threads not started by Python leave no trace. Libraries that start some rarely import fast.
            subject = "a library that the file imports, most likely this one, starts a thread"
            line = _longest(libraries)
        message = f"{subject}, so every call gets an interpreter of its own"
        yield Finding("threads-at-import", line, message, "start it in the tool that needs it")


def _longest(seconds: Mapping[int, float]) -> int:
    return max(seconds, key=lambda line: seconds[line], default=1)


def tool_faults(tool: Mapping[str, Any], source: SourceFile) -> Iterator[Finding]:
    """Yield faults of one tool of `tools/list`, on the lines that define it."""
    name, identity = str(tool.get("name")), source.identity
    function = next((o.function for o in source.offers if o.kind == "tool" and o.name == name), None)
    at: ast.AST = source.tree if function is None else function
    parts = [] if function is None else ast.walk(function.args)
    arguments = {part.arg: part for part in parts if isinstance(part, ast.arg)}
    schema = tool.get("inputSchema", {})
    properties = schema.get("properties", {})
    if not tool.get("description"):
        message = f"the tool {name!r} has no docstring, so a model does not know its purpose"
        yield Finding.at(at, "missing-docstring", message, "describe it in one line")
    for key in properties:
        place = arguments.get(key, at)
        if key in arguments and arguments[key].annotation is None:
            message = f"`{key}` of the tool {name!r} has no type, so callers may pass any value"
            cure = f"`{key}: Context`" if key in ("ctx", "context") else f"`{key}: str`, or its type"
            yield Finding.at(place, "unannotated-parameter", message, f"write {cure}")
        if key in ("filename", "filenames") and identity not in properties:
            message = f"the tool {name!r} takes `{key}` but no `{identity}`: it can read its files, not write"
            cure = f"add the parameter `{identity}: str`"
            yield Finding.at(place, "filename-without-username", message, cure)
        if key == identity and not _accepts_text(properties[key], schema.get("$defs", {})):
            message = f"`{key}` of the tool {name!r} accepts no text, so every call would be refused"
            yield Finding.at(place, "username-type", message, f"write `{key}: str`")
    meta = tool.get("_meta") or {}
    ui = meta["ui"] if isinstance(meta.get("ui"), Mapping) else {}
    for key in (dialects.WIDGET_CSP, "csp", "permissions"):
        if key in (meta if key == dialects.WIDGET_CSP else ui):
            message = f"`{key}` is declared on a tool, where hosts do not look for it"
            cure = "declare it with the page: `Widget(csp=…)`, or `_meta` of the resource"
            yield Finding.at(at, "widget-csp-on-tool", message, cure)
    for key in dialects.INVOCATION_KEYS:
        if isinstance(text := meta.get(key), str) and not 0 < len(text) <= dialects.INVOCATION_MAX_CHARS:
            message = f"hosts show 1 to {dialects.INVOCATION_MAX_CHARS} characters meanwhile, not {len(text)}"
            cure = "use a shorter text: `Drawing the chart...`"
            yield Finding.at(at, "widget-invocation-text", message, cure)
    if (dialects.RESOURCE_URI in meta or "resourceUri" in ui) and "visibility" not in ui:
        message = "nothing declares if the page may call this tool, and hosts differ in their default"
        cure = 'add `"visibility": ["model"]`, or `["model", "app"]` if the page may call it'
        yield Finding.at(at, "widget-visibility", message, cure)


def _accepts_text(schema: Any, defs: Mapping[str, Any]) -> bool:
    """Return whether a schema accepts any name, not only certain texts, or texts of a format."""
    if isinstance(schema, bool):
        return schema
    if "anyOf" in schema:
        return any(_accepts_text(each, defs) for each in schema["anyOf"])
    schema = defs.get(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    return schema.get("type", "string") == "string" and not {"enum", "const", "format"} & schema.keys()


def page_faults(page: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], line: int) -> Iterator[Finding]:
    """Yield faults, on a line, of one `ui://` item of `resources/read`, which tools may name."""
    uri, mime = str(page.get("uri")), page.get("mimeType")
    metas = [tool.get("_meta") or {} for tool in tools]
    uis = [meta["ui"] if isinstance(meta.get("ui"), Mapping) else {} for meta in metas]
    used = {dialects.SKYBRIDGE for meta in metas if uri == meta.get(dialects.OUTPUT_TEMPLATE)}
    pages = ({meta.get("resourceUri"), meta.get(dialects.RESOURCE_URI)} for meta in (*uis, *metas))
    used |= {dialects.MCP_APP for named in pages if uri in named}
    wanted = sorted(used or {dialects.SKYBRIDGE, dialects.MCP_APP})
    if uri.startswith(dialects.SCHEME) and mime not in wanted:
        message = f"hosts do not show {uri} as {mime!r}; they expect {' or '.join(map(repr, wanted))}"
        cure = "declare the page as a `Widget`, which serves it in both, or write the media type exactly so"
        yield Finding("widget-mime", line, message, cure)
    own = page.get("_meta") or {}
    csp = own["ui"].get("csp") if isinstance(own.get("ui"), Mapping) else None
    hosts: list[Any] = []
    for domains, key in ((own.get(dialects.WIDGET_CSP), "resource_domains"), (csp, "resourceDomains")):
        hosts += domains[key] if isinstance(domains, Mapping) and isinstance(domains.get(key), list) else []
    allowed = {str(host).rpartition("://")[2].lower() for host in hosts}
    html = str(page.get("text"))[:_MOST_CHARS]
    urls = [next(filter(None, found)) for found in _IN_TAGS.findall(html)]
    for kind, text in _BLOCK.findall(html):
        urls += _IN_BLOCK[kind.lower()].findall(text)
    for url in dict.fromkeys(urls):
        host = urlsplit(url, scheme="https").netloc.lower()
        if host not in allowed and not any(n.startswith("*.") and host.endswith(n[1:]) for n in allowed):
            message = f"the page loads {url}, which hosts block: its CSP does not name {host}"
            cure = "put it into the page itself, or name the host in `Csp(resources=…)`"
            yield Finding("widget-remote-code", line, message, cure)
