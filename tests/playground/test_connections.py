"""Content on the second origin opens no connection, not even one to be refused.

A bare connection reveals a name: its name server learns that it was looked up, and from where.

Source: WICG "Connection Allowlists"; the design's notes on the security of shown content.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from browsers import WHOLE
from hostile_support import sinking
from playground_support import Shown
from playwright.sync_api import Error, Page, Route
from support import until
from web_support import Seen, after_turns, browsing

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

AWAY = {
    "location": "<script>location.href = 'SINK/away'</script>",
    "replaced": "<script>location.replace('SINK/away')</script>",
    "navigation": "<script>navigation.navigate('SINK/away').committed.catch(() => 0)</script>",
    "refreshed": "<meta http-equiv=refresh content='0;url=SINK/away'>",
    "link": "<a id=a href='SINK/away'>x</a><script>a.click()</script>",
    "map": "<map name=m><area id=a href='SINK/away'></map><script>a.click()</script>",
}
"""Documents that send their own frame to the sink."""

LOADS = """
<script>
fetch('SINK/fetched', {mode: 'no-cors'}).catch(() => 0);
new WebSocket('SINK/socket'.replace('http', 'ws')).onerror = () => 0;
</script><img src='SINK/picture'><img src='OTHER/picture'>
"""
SHOW = """([address, html, csp]) => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts allow-same-origin";
  const {origin} = new URL(address);
  addEventListener("message", ({data}) => {
    const show = {jsonrpc: "2.0", method: "ui/notifications/sandbox-resource-ready", params: {html, csp}};
    if (data.method === "ui/notifications/sandbox-proxy-ready") frame.contentWindow.postMessage(show, origin);
  }, {once: true});
  frame.src = address;
  document.body.append(frame);
}"""


@pytest.fixture(scope="module")
def opened(shown: Shown) -> Iterator[Callable[..., Seen]]:
    with browsing(shown, WHOLE) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    yield seen
    seen.page.context.close()


def show(page: Page, html: str, csp: dict[str, list[str]] | None = None) -> None:
    """Show a document as a widget is shown."""
    origin = page.evaluate("fetch('/play/info').then(answer => answer.json())")["frames"]
    page.evaluate(SHOW, [f"{origin}/widget?csp={quote(json.dumps(csp or {}))}", html, csp or {}])


def go_away(seen: Seen, html: str) -> None:
    """Let a document try to go elsewhere, and wait until it was stopped."""
    before = len(seen.troubles)
    show(seen.page, html)
    assert until(after_turns(seen.page, lambda: any("frame-src" in each for each in seen.troubles[before:])))


def without_list(route: Route) -> None:
    """Answer with the page of the second origin, but without its list of connections."""
    # A page that is closed meanwhile wants no answer any more.
    with contextlib.suppress(Error):
        answer = route.fetch()
        headers = {name: value for name, value in answer.headers.items() if name != "connection-allowlist"}
        route.fulfill(response=answer, headers=headers)


def test_document_redirecting_its_own_frame_opens_no_connection(seen: Seen) -> None:
    with sinking() as sink:
        for html in AWAY.values():
            go_away(seen, sink.named(html))
        stopped = sink.connections

        seen.page.route("**/widget?*", without_list)

        def reaches() -> bool:
            go_away(seen, sink.named(AWAY["location"]))
            return sink.connections > 0

        reached = until(reaches)

    assert stopped == 0
    assert reached
    assert sink.paths == []


def test_document_reaches_only_servers_named_by_its_resource(seen: Seen) -> None:
    with sinking() as sink, sinking() as other:
        named = {"connectDomains": [sink.url, sink.url.replace("http", "ws")], "resourceDomains": [sink.url]}

        show(seen.page, sink.named(LOADS).replace("OTHER", other.url), named)
        reached = until(after_turns(seen.page, lambda: {"/fetched", "/socket", "/picture"} <= {*sink.paths}))

        assert reached
        assert other.connections == 0
