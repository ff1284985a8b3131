"""Pages in a real browser: beside a stand-in for `window.openai`, in an MCP Apps host, or by themselves.

No request leaves the browser. What a page asks of other servers is written down and refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from browsers import PATIENCE_MS, launched
from playwright.sync_api import Browser, BrowserContext, Frame, Page, Route

__all__ = [
    "AXE",
    "BRIDGED",
    "CAPABILITIES",
    "HOST",
    "HOST_MODULE",
    "METHODS",
    "PAGES",
    "PROXY",
    "ROOT",
    "WIDGETS",
    "Showing",
    "Shown",
    "launched",
    "showing",
]

ROOT = Path(__file__).parents[2]
WIDGETS = ROOT / "runner" / "widgets"
PAGES = WIDGETS / "pages"
AXE = ROOT / "tests" / "npm" / "node_modules" / "axe-core" / "axe.min.js"

WIDGET = "http://widget.test"
HOST = "http://host.test"
PROXY = "http://proxy.test"

# A page of anyone's with the bridge in it.
BRIDGED = (
    '<!doctype html><html lang="en"><title>bridged</title>'
    f"<script>{(WIDGETS / 'bridge.js').read_text()}</script><body>here"
)
CAPABILITIES: Mapping[str, Any] = {
    "serverTools": {},
    "openLinks": {},
    "message": {"text": {}},
    "updateModelContext": {"text": {}, "structuredContent": {}},
}

OPENAI = """
window.calls = [];
const answers = ANSWERS;
const method = name => async (...args) => {
  window.calls.push([name, ...args]);
  if (answers[name] && answers[name].throws) throw new Error(answers[name].throws);
  return answers[name];
};
window.openai = Object.assign(VALUES, Object.fromEntries(METHODS.map(name => [name, method(name)])));
window.setGlobals = globals => {
  Object.assign(window.openai, globals);
  window.dispatchEvent(new CustomEvent("openai:set_globals", {detail: {globals}}));
};
"""
METHODS = (
    "callTool",
    "sendFollowUpMessage",
    "uploadFile",
    "getFileDownloadUrl",
    "requestDisplayMode",
    "requestModal",
    "notifyIntrinsicHeight",
    "openExternal",
    "requestClose",
    "setWidgetState",
)

# A host as the MCP Apps document describes one, which writes down all it hears.
MCP_HOST = """<!doctype html><html lang="en"><title>host</title><body style="margin:0"><script>
const config = CONFIG;
window.posted = [];
const frame = document.createElement("iframe");
if (config.opaque) frame.setAttribute("sandbox", "allow-scripts");
frame.style.cssText = "border:0;width:100%;height:700px";
frame.title = "widget";
window.send = message => frame.contentWindow.postMessage({jsonrpc: "2.0", ...message}, "*");
window.addEventListener("message", ({source, data}) => {
  if (source !== frame.contentWindow) return;
  window.posted.push(data);
  if (data.method === "ui/initialize") config.answers && send({id: data.id, result: {
    protocolVersion: "2026-01-26", hostInfo: {name: "test host", version: "1"},
    hostCapabilities: config.capabilities, hostContext: config.context}});
  else if (data.method === "ui/notifications/initialized") config.events.forEach(send);
  else if (data.id !== undefined && data.method) {
    const answer = data.method in config.replies ? config.replies[data.method] : {result: {}};
    if (answer) send({id: data.id, ...answer});
  }
});
if (config.opaque) frame.srcdoc = config.html; else frame.src = config.src;
document.body.append(frame);
</script>"""

# The page around a widget in our own host side; CONFIG gives its options.
HOST_MODULE = """
import { WidgetHost } from "./host.js";
window.host = new WidgetHost({
  container: document.getElementById("here"), proxyUrl: "http://proxy.test/proxy.html", title: "A widget",
  ...CONFIG,
});
"""


@dataclass
class Shown:
    """One page on show: the browser's page, the frame the widget is in, and what went wrong."""

    page: Page
    frame: Frame | Page
    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return str(self.frame.locator("body").inner_text())

    def wait_for(self, text: str) -> None:
        # As it is drawn: some texts are cut short, and case is kept.
        self.frame.wait_for_function("text => document.body.innerText.includes(text)", arg=text)

    @property
    def calls(self) -> list[list[Any]]:
        return list(self.frame.evaluate("window.calls"))

    def called(self, name: str) -> list[list[Any]]:
        """Wait until a method of the host was called, and return its arguments of each time."""
        self.frame.wait_for_function("name => window.calls.some(call => call[0] === name)", arg=name)
        return [call[1:] for call in self.calls if call[0] == name]

    @property
    def posted(self) -> list[dict[str, Any]]:
        return list(self.page.evaluate("window.posted"))

    def wait_for_message(self, method: str) -> dict[str, Any]:
        """Wait until the host has heard a method, and return the last such message."""
        self.page.wait_for_function("method => window.posted.some(one => one.method === method)", arg=method)
        return [one for one in self.posted if one.get("method") == method][-1]

    def violations(self) -> list[str]:
        """Violations that axe-core finds, as sentences."""
        self.frame.evaluate(AXE.read_text())
        rules = self.frame.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
        )
        return [
            f"{rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in rules
            for node in rule["nodes"]
        ]


class Showing:
    """Ways to show a page in one browser context."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context

    def openai(
        self,
        name: str,
        values: Mapping[str, Any],
        *,
        methods: Sequence[str] = METHODS,
        answers: Mapping[str, Any] | None = None,
        before: str = "",
    ) -> Shown:
        """Show a page in a host of the `window.openai` kind."""
        script = OPENAI.replace("ANSWERS", json.dumps(answers or {})).replace("METHODS", json.dumps(methods))
        return self.alone(name, before=script.replace("VALUES", parsed(values)) + before)

    def alone(self, name: str, *, before: str = "", html: str | None = None) -> Shown:
        """Show a page by itself."""
        page, shown = self._page()
        if before:
            page.add_init_script(before)
        self._serve(page, shown, {f"{WIDGET}/": html or (PAGES / f"{name}.html").read_text()})
        page.goto(f"{WIDGET}/", wait_until="load")
        return shown

    def mcp(
        self,
        name: str,
        events: Sequence[Mapping[str, Any]] = (),
        *,
        context: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] = CAPABILITIES,
        replies: Mapping[str, Any] | None = None,
        answers: bool = True,
        opaque: bool = True,
        html: str | None = None,
    ) -> Shown:
        """Show a page in an MCP Apps host; by default in a frame without an origin."""
        page, shown = self._page()
        body = html or (PAGES / f"{name}.html").read_text()
        config = {
            "html": body,
            "src": f"{HOST}/widget",
            "opaque": opaque,
            "answers": answers,
            "capabilities": capabilities,
            "context": context
            or {
                "theme": "light",
                "displayMode": "inline",
                "availableDisplayModes": ["inline", "fullscreen", "pip"],
            },
            "events": list(events),
            "replies": replies or {},
        }
        host = MCP_HOST.replace("CONFIG", parsed(config))
        self._serve(page, shown, {f"{HOST}/": host, f"{HOST}/widget": body})
        page.goto(f"{HOST}/", wait_until="load")
        shown.frame = page.frames[1]
        return shown

    def hosted(self, script: str, *, files: Mapping[str, str] | None = None) -> Shown:
        """Show a page of the project's own host side: `script` is a module that may import `WidgetHost`."""
        page, shown = self._page()
        start = '<!doctype html><html lang="en"><title>host</title><body><div id="here"></div>'
        body = f'{start}<script type="module">{script}</script>'
        served = {
            f"{HOST}/": body,
            f"{HOST}/host.js": (WIDGETS / "host.js").read_text(),
            f"{PROXY}/proxy.html": (WIDGETS / "proxy.html").read_text(),
            **(files or {}),
        }
        self._serve(page, shown, served)
        page.goto(f"{HOST}/", wait_until="load")
        return shown

    def _page(self) -> tuple[Page, Shown]:
        page = self._context.new_page()
        shown = Shown(page, page)
        page.on("pageerror", lambda error: shown.errors.append(str(error)))
        page.on("console", lambda entry: shown.errors.append(entry.text) if entry.type == "error" else None)
        return page, shown

    def _serve(self, page: Page, shown: Shown, served: Mapping[str, str]) -> None:
        def answer(route: Route) -> None:
            body = served.get(route.request.url)
            if body is None:
                shown.refused.append(route.request.url)
                route.abort()
            else:
                kind = "text/javascript" if route.request.url.endswith(".js") else "text/html; charset=utf-8"
                route.fulfill(body=body, content_type=kind)

        page.route("**/*", answer)


@contextmanager
def showing(browser: Browser, **options: Any) -> Iterator[Showing]:
    """A fresh browser context with room for pages."""
    context = browser.new_context(viewport={"width": 480, "height": 700}, **options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield Showing(context)
    finally:
        context.close()


def parsed(value: Any) -> str:
    """JSON as an expression of JavaScript: keeps keys such as `__proto__`, cannot end a script element."""
    return f"JSON.parse({json.dumps(json.dumps(value)).replace('<', chr(92) + 'u003c')})"
