"""Widgets in a real browser: pages in hosts of both kinds, the bridge, and the project's own host side."""

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pages_support import BRIDGED, HOST_MODULE, PAGES, Showing, Shown, launched, showing

__all__ = ["OPERATIONS"]

T = TypeVar("T")

SETTLED = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
INITIALIZED = "ui/notifications/initialized"


def in_browser(act: Callable[[Showing], T]) -> T:
    """Do something in a browser of its own, in a thread of its own: it brings an event loop along."""

    def run() -> T:
        with launched() as browser, showing(browser) as ways:
            return act(ways)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="browser") as thread:
        return thread.submit(run).result()


def widget_dom(case: Mapping[str, Any]) -> dict[str, Any]:
    """The text of a page of ours, and what it told its parent."""
    return in_browser(lambda show: (in_openai if case["host"] == "window.openai" else in_mcp_app)(show, case))


def in_openai(show: Showing, case: Mapping[str, Any]) -> dict[str, Any]:
    values = {
        key: case[key]
        for key in ("toolInput", "toolOutput", "toolResponseMetadata", "theme", "locale")
        if key in case
    }
    shown = show.openai(case["widget"], values)
    return seen(shown, posted=[])


def in_mcp_app(show: Showing, case: Mapping[str, Any]) -> dict[str, Any]:
    shown = show.mcp(case["widget"], case.get("events", []))
    shown.wait_for_message(INITIALIZED)
    # Answered after all that was sent before: messages keep their order.
    shown.page.evaluate("send({id: 'last', method: 'ping'})")
    shown.page.wait_for_function("window.posted.some(one => one.id === 'last')")
    return seen(shown, posted=shown.posted)


def seen(shown: Shown, posted: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    shown.frame.evaluate(SETTLED)
    dom = shown.text
    shown.page.close()
    return {"dom": dom, "posted": [one for one in posted if one.get("id") != "last"]}


def bridge(case: Mapping[str, Any]) -> dict[str, Any]:
    """Messages of a bridge call, reasons of rejection, and the state of a widget that is opened again."""
    return in_browser(lambda show: called(show, case))


def called(show: Showing, case: Mapping[str, Any]) -> dict[str, Any]:
    name, *arguments = case["call"]
    alone = case["host"] == "none"
    # In a frame with an origin: only there has a widget a place of its own for what it remembers.
    shown = show.alone("", html=BRIDGED) if alone else show.mcp("", html=BRIDGED, opaque=False)
    if not alone:
        shown.wait_for_message(INITIALIZED)
    call = "([name, args]) => widgetRuntime[name](...args).then(() => null, error => error.message)"
    rejected = shown.frame.evaluate(call, [name, arguments])
    posted = [] if alone else shown.posted
    state = remounted(shown, alone=alone)
    shown.page.close()
    return {"posted": posted, "rejected": rejected, "state_after_remount": state}


def remounted(shown: Shown, *, alone: bool) -> Any:
    shown.page.reload()
    shown.frame = shown.page if alone else shown.page.frames[1]
    if not alone:
        shown.wait_for_message(INITIALIZED)
    return shown.frame.evaluate("widgetRuntime.useWidgetState()")


def host(case: Mapping[str, Any]) -> dict[str, Any]:
    """True if our host side has closed a widget after it delivered a result."""
    return in_browser(lambda show: delivered(show, case))


def delivered(show: Showing, case: Mapping[str, Any]) -> dict[str, Any]:
    config = {"html": (PAGES / "kitchen-sink-lite.html").read_text()}
    shown = show.hosted(HOST_MODULE.replace("CONFIG", json.dumps(config).replace("<", "\\u003c")))
    shown.page.wait_for_function("window.host")
    shown.page.evaluate("host.ready")
    shown.page.evaluate("result => host.toolResult(result)", case["tool_result"])
    shown.page.locator("iframe").wait_for(state="detached")
    closed = shown.page.evaluate("host.closed")
    shown.page.close()
    return {"widget_closed": closed}


OPERATIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "widget_dom": widget_dom,
    "bridge": bridge,
    "host": host,
}
